"""The contract of every simulator, held by environments of other packages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import pytest

from sims.base import VecSim
from sims.gymnasium_vec import GymnasiumVec
from tests.contract.test_vecsim import *  # noqa: F403  the tests themselves

SIMS: dict[str, Callable[..., VecSim]] = {
    "adroit": partial(GymnasiumVec, "gymnasium_robotics:AdroitHandDoor-v1"),
    "pusht": partial(GymnasiumVec, "gym_pusht:gym_pusht/PushT-v0"),
    "ogbench": partial(GymnasiumVec, "cube-single-play-singletask-task2-v0", maker="sims.ogbench_envs:make"),
}

EXCEPTIONS = {
    ("adroit", "test_seeds_decide_episodes_and_differ_between_environments"): "its first number is always 0 at first",
    ("pusht", "test_a_run_repeats_in_the_same_simulator"): "pymunk numbers shapes on and on: rewards repeat to 1e-15",
}


@pytest.fixture(params=sorted(SIMS))
def make_sim(request: pytest.FixtureRequest) -> Iterator[Callable[..., VecSim]]:
    told = EXCEPTIONS.get((request.param, request.node.originalname))
    if told is not None:
        pytest.skip(told)
    opened: list[VecSim] = []

    def make(num_envs: int, **kwargs: object) -> VecSim:
        opened.append(SIMS[request.param](num_envs, max_episode_steps=12, **kwargs))
        return opened[-1]

    yield make
    for sim in opened:
        sim.close()
