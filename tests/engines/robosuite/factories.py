"""Small simulators for the tests, short enough to cross episodes quickly."""

from __future__ import annotations

from collections.abc import Callable

from sims.base import VecSim
from sims.robosuite_vec import RobosuiteVec

EPISODE_STEPS = 12


def factory(task: str, **fixed: object) -> Callable[..., VecSim]:
    """make(num_envs, **settings) of one task."""

    def make(num_envs: int, **settings: object) -> VecSim:
        return RobosuiteVec(
            task, num_envs, **{"num_workers": 1, "max_episode_steps": EPISODE_STEPS, **fixed, **settings}
        )

    return make


SIMS: dict[str, Callable[..., VecSim]] = {
    "robosuite-lift": factory("Lift", num_workers=2),
    "robosuite-can": factory("PickPlaceCan"),
    "robosuite-square": factory("NutAssemblySquare"),
}
