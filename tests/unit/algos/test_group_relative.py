"""What an episode's advantage becomes on its decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robopo.algos.choices import RolloutKind
from robopo.algos.group_relative import GroupRelative, GroupStd
from robopo.algos.positive_part import PositivePart
from robopo.errors import ConfigError, ShapeError
from robopo.types import RolloutBatch

REWARD = torch.tensor([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 0.0], [1.0, 0.0, 0.0, 0.0]])  # [T, E]
USE = torch.tensor([[1, 1, 1, 1], [1, 0, 1, 0], [0, 0, 1, 0]], dtype=torch.bool)


def batch(reward: Tensor = REWARD, use: Tensor = USE) -> RolloutBatch:
    """E0 fails (the 1 in its last row is of another episode), E1, E2 and E3 succeed."""
    none = torch.zeros_like(use)
    return RolloutBatch(
        obs={},
        next_obs={},
        latents=torch.zeros(3, 4, 1, 1, 1),
        log_probs=torch.zeros(3, 4, 0),
        reward=reward,
        terminated=torch.tensor([[0, 1, 0, 1], [1, 0, 0, 0], [0, 0, 1, 0]], dtype=torch.bool),
        truncated=none,
        first=none,
        extras={"group": torch.tensor([0, 0, 1, 1]), "use": use},
    )


def estimate(estimator: GroupRelative | PositivePart, data: RolloutBatch):
    zero = torch.zeros_like(data.reward)
    return estimator(data, data.reward, zero, zero)


def test_every_decision_of_an_episode_gets_its_advantage() -> None:
    out = estimate(GroupRelative(eps=1e-9), batch())
    assert out.use is not None
    # Group 0: returns 0 and 1, A = -1 and 1. Group 1: twice 1, dropped.
    expected = torch.tensor([[-1.0, 1.0, 0.0, 0.0], [-1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 0.0, 0.0]])
    torch.testing.assert_close(out.advantage, expected)
    assert out.use.tolist() == [[True, True, False, False], [True, False, False, False], [False] * 4]
    assert GroupRelative().rollout is RolloutKind.GROUPS


def test_scaled_rewards_change_the_critics_target_alone() -> None:
    data, zero = batch(), torch.zeros_like(REWARD)
    plain = GroupRelative(gamma=0.5, lam=1.0)(data, data.reward, zero, zero)
    scaled = GroupRelative(gamma=0.5, lam=1.0)(data, 3.0 * data.reward, zero, zero)
    assert plain.advantage.equal(scaled.advantage)
    torch.testing.assert_close(scaled.returns, 3.0 * plain.returns)
    # V = 0 and lambda 1: discounted returns. E2 earns 1 at its second decision; E0's end stops the trace.
    assert plain.returns[:, 2].tolist() == [0.5, 1.0, 0.0]
    assert plain.returns[:2, 0].tolist() == [0.0, 0.0]


def test_batch_std_and_clamp() -> None:
    # Returns 0, 1, 1, 1: batch std sqrt(3)/4; deviations of group 0 are -.5 and .5.
    out = estimate(GroupRelative(std=GroupStd.BATCH, eps=1e-9), batch())
    torch.testing.assert_close(out.advantage[0, :2], torch.tensor([-0.5, 0.5]) * 4 / 3**0.5)
    clamped = estimate(GroupRelative(std=GroupStd.BATCH, clamp=1.0), batch())
    assert clamped.advantage[0].tolist() == [-1.0, 1.0, 0.0, 0.0]


def test_positive_part() -> None:
    inner = GroupRelative()
    whole, part = estimate(inner, batch()), estimate(PositivePart(inner), batch())
    assert part.advantage.equal(whole.advantage.clamp_min(0.0))
    assert part.advantage[0, 0] == 0.0 < part.advantage[0, 1]
    assert part.returns.equal(whole.returns)
    assert part.use is not None and whole.use is not None and part.use.equal(whole.use)
    assert PositivePart(inner).rollout is RolloutKind.GROUPS


def test_errors_say_what_to_do() -> None:
    with pytest.raises(ShapeError, match="GroupCollector"):
        estimate(GroupRelative(), replace(batch(), extras={}))
    for field, value in (("clamp", 0.0), ("eps", 0.0), ("gamma", 1.1), ("lam", -0.1), ("std", "row")):
        with pytest.raises(ConfigError, match=field):
            GroupRelative(**{field: value})
    assert GroupRelative(std="batch").std is GroupStd.BATCH  # as YAML says it
