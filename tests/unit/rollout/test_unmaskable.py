"""Chunks on a simulator that can't leave environments untouched: those that wait drift until the next decision."""

from __future__ import annotations

import numpy as np
import torch

from robopo.rollout.collector import Collector
from sims.base import BoolArray, FloatArray, Step
from tests.helpers.fake_policy import FakeSpec
from tests.helpers.point_mass import PointMass
from tests.unit.rollout.test_collector import Scripted

DRIFT_M = 0.5


class Drifting(PointMass):
    """Environments outside the mask move by ``DRIFT_M`` along x, but nothing is said about them."""

    def __init__(self, num_envs: int, **settings: object) -> None:
        super().__init__(num_envs, maskable=False, **settings)

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        waiting = np.zeros(self.num_envs, bool) if mask is None else ~np.asarray(mask, bool)
        self._position[waiting, 0] += DRIFT_M
        return super().step(action, mask)

    def observe(self) -> dict[str, FloatArray]:
        return self._observe({name: np.zeros((self.num_envs, 2), np.float32) for name in self._spec.observation})


def test_the_next_decision_sees_where_those_that_waited_are() -> None:
    """Environment 0 starts at its goal and ends in row 1 of 3, then drifts twice before the second decision."""
    sim = Drifting(2, radius=0.1, max_episode_steps=50)
    collector = Collector(sim, Scripted(FakeSpec(obs_steps=2, horizon=3, action_steps=3)))
    generator = torch.Generator().manual_seed(0)
    collector.reset(0)
    sim._position[0] = sim._goal[0]
    batch = collector.collect(2, generator)
    assert batch.terminated[0].tolist() == [True, False]
    assert batch.reward[0].tolist() == [1.0, 0.0]
    opening = PointMass(2)
    opening.reset(0)
    opening._begin(np.array([0]))  # the second episode of environment 0, before it drifted
    seen = batch.obs["state"][1, 0]
    expected = opening._position[0] + (2 * DRIFT_M, 0.0)
    np.testing.assert_allclose(seen[0].numpy(), expected, atol=1e-6)
    assert seen[0].equal(seen[1])  # a new episode has one observation in its whole window
    # The true next observation of the first decision is still the last one of the episode that ended.
    np.testing.assert_allclose(batch.next_obs["state"][0, 0, -1].numpy(), batch.obs["environment_state"][0, 0, -1])
    assert batch.next_obs["state"][0, 1].shape == (2, 2)
    assert batch.first[1].tolist() == [True, False]


def test_waiting_steps_are_not_counted() -> None:
    sim = Drifting(2, max_episode_steps=7)
    collector = Collector(sim, Scripted(FakeSpec(horizon=4, action_steps=3)))
    batch = collector.collect(3, torch.Generator().manual_seed(0))
    assert collector.env_steps == 14
    assert batch.truncated[:, 0].tolist() == [False, False, True]
    assert collector.stats is not None
    assert [episode.length for episode in collector.stats.episodes] == [7, 7]
