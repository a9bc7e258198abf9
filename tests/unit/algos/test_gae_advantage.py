from __future__ import annotations

import torch

from robopo.algos.choices import RolloutKind
from robopo.algos.gae_advantage import GAE
from robopo.types import RolloutBatch

NOTHING = torch.zeros(3, 1, dtype=torch.bool)


def batch(truncated: torch.Tensor) -> RolloutBatch:
    empty = torch.zeros(3, 1, 0)
    return RolloutBatch({}, {}, empty, empty, torch.zeros(3, 1), NOTHING, truncated, NOTHING)


def test_by_hand_with_a_truncation() -> None:
    """gamma .9, lam .5, V = 1, next V = 2, reward 1: every TD error is 1.8; the second decision is truncated."""
    truncated = torch.tensor([[False], [True], [False]])
    value = torch.ones(3, 1)
    estimator = GAE(gamma=0.9, lam=0.5)
    out = estimator(batch(truncated), torch.ones(3, 1), value, 2.0 * value)
    torch.testing.assert_close(out.advantage[:, 0], torch.tensor([1.8 + 0.45 * 1.8, 1.8, 1.8]))
    torch.testing.assert_close(out.returns, out.advantage + 1.0)
    assert out.use is None
    assert estimator.rollout is RolloutKind.PLAIN


def test_legacy_leaks_across_the_truncation() -> None:
    """Next values are those of the following row: 1, 1, and 2 after the last."""
    truncated = torch.tensor([[False], [True], [False]])
    value = torch.ones(3, 1)
    out = GAE(gamma=0.9, lam=0.5, legacy=True)(batch(truncated), torch.ones(3, 1), value, 2.0 * value)
    last = 1.8
    middle = 0.9 + 0.45 * last
    torch.testing.assert_close(out.advantage[:, 0], torch.tensor([0.9 + 0.45 * middle, middle, last]))
