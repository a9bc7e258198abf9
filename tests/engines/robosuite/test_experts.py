"""The scripted demonstrators do what they are for."""

from __future__ import annotations

import numpy as np
import pytest

from sims.experts import ExpertConfig
from sims.robosuite_experts import EXPERTS, make_robosuite_expert
from sims.robosuite_vec import RobosuiteVec

EPISODES = 6


def successes(sim: RobosuiteVec, config: ExpertConfig) -> tuple[int, float]:
    """How many of the first episodes succeed, and the mean length of those."""
    expert = make_robosuite_expert(sim.spec.name, EPISODES, config, seed=1)
    obs, alive = sim.reset(np.arange(EPISODES)), np.ones(EPISODES, dtype=bool)
    lengths: list[int] = []
    while alive.any():
        action = expert.act(obs)
        assert action.shape == (EPISODES, 7) and np.abs(action).max() <= 1
        step = sim.step(action, alive)
        obs = step.obs
        lengths += step.info["episode_length"][step.info["success"]].tolist()
        alive &= ~(step.terminated | step.truncated)
    return len(lengths), float(np.mean(lengths))


@pytest.mark.parametrize(
    ("task", "limit"), [("Lift", 45), ("PickPlaceCan", 150), ("NutAssemblySquare", 150), ("Stack", 90)]
)
def test_the_clean_expert_succeeds_quickly(task: str, limit: int) -> None:
    sim = RobosuiteVec(task, EPISODES, num_workers=1)
    count, length = successes(sim, ExpertConfig())
    sim.close()
    assert count == EPISODES and length < limit


def test_a_novice_mostly_succeeds_and_takes_longer() -> None:
    sim = RobosuiteVec("Lift", EPISODES, num_workers=1, separate_keys=True)
    count, length = successes(sim, ExpertConfig.imperfect(1.0))
    sim.close()
    assert count >= EPISODES - 1 and length > 35


def test_every_published_single_arm_task_has_one() -> None:
    assert set(EXPERTS) == {"Lift", "PickPlaceCan", "NutAssemblySquare", "Stack"}
