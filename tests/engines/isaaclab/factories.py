"""Small simulators for the tests, short enough to cross episodes quickly. One lives at a time in a process."""

from __future__ import annotations

from collections.abc import Callable

from sims.base import VecSim
from sims.isaaclab_vec import IsaacLabVec

EPISODE_STEPS = 12


def factory(task: str, **fixed: object) -> Callable[..., VecSim]:
    """make(num_envs, **settings) of one task."""

    def make(num_envs: int, **settings: object) -> VecSim:
        return IsaacLabVec(task, num_envs, **{"max_episode_steps": EPISODE_STEPS, **fixed, **settings})

    return make


SIMS: dict[str, Callable[..., VecSim]] = {
    "isaaclab-reach": factory("reach"),
    "isaaclab-lift": factory("lift"),
    "isaaclab-foreign": factory("tests.engines.isaaclab.spinner:Spinner"),
}
