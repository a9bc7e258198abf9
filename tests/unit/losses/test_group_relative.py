"""Group-relative advantages worked out by hand."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from robopo.losses.group_relative import group_advantage, zero_spread


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


GROUP = torch.tensor([0, 0, 1, 1])


def test_by_hand() -> None:
    # Group 0: mean 2, deviations -1 and 1, std 1. Group 1: mean 5, deviations -3 and 3, std 3.
    out = group_advantage(episode_return=numbers(1, 3, 2, 8), group=GROUP, eps=0.0)
    torch.testing.assert_close(out.advantage, numbers(-1, 1, -1, 1))
    assert out.use.all()


def test_batch_std_by_hand() -> None:
    # All four: mean 3.5, squares 6.25 + .25 + 2.25 + 20.25 = 29, variance 7.25.
    out = group_advantage(episode_return=numbers(1, 3, 2, 8), group=GROUP, batch_std=True, eps=0.0)
    torch.testing.assert_close(out.advantage, numbers(-1, 1, -3, 3) / math.sqrt(7.25))


@pytest.mark.parametrize("batch_std", [False, True])
def test_each_group_sums_to_zero_whatever_the_order(batch_std: bool) -> None:
    generator = torch.Generator().manual_seed(0)
    returns = torch.randn(12, generator=generator, dtype=torch.float64)
    group = torch.tensor([7, 0, 3, 3, 0, 7, 7, 0, 3, 7, 0, 3])
    out = group_advantage(episode_return=returns, group=group, batch_std=batch_std)
    for number in (0, 3, 7):
        assert abs(float(out.advantage[group == number].sum())) < 1e-12
    order = torch.randperm(12, generator=generator)
    shuffled = group_advantage(episode_return=returns[order], group=group[order], batch_std=batch_std)
    torch.testing.assert_close(shuffled.advantage, out.advantage[order])


def test_a_group_without_spread_is_dropped() -> None:
    # .1 three times: the rounded mean differs from .1, and must not become an advantage.
    group = torch.tensor([0, 0, 0, 1, 1, 1, 2])
    returns = torch.tensor([0.1, 0.1, 0.1, 0.0, 0.0, 1.0, 4.0])
    out = group_advantage(episode_return=returns, group=group)
    assert out.use.tolist() == [False] * 3 + [True] * 3 + [False]  # alone in its group: nothing to compare with
    assert out.advantage[~out.use].eq(0).all()
    assert zero_spread(episode_return=returns, group=group).equal(~out.use)
    # Deviations -1/3, -1/3, 2/3; std sqrt(2)/3
    torch.testing.assert_close(
        out.advantage[3:6], torch.tensor([-1.0, -1.0, 2.0]) / (math.sqrt(2.0) + 3e-4), rtol=1e-5, atol=0.0
    )


def test_eps_and_clamp() -> None:
    returns = torch.zeros(101, dtype=torch.float64)
    returns[0] = 1.0  # 100 failures and one success: A of the success is sqrt(100) = 10
    group = torch.zeros(101, dtype=torch.long)
    free = group_advantage(episode_return=returns, group=group, eps=0.0).advantage
    torch.testing.assert_close(free[0], numbers(10.0)[0])
    assert group_advantage(episode_return=returns, group=group, clamp=5.0).advantage[0] == 5.0
    tiny = group_advantage(episode_return=returns * 1e-6, group=group).advantage  # std 1e-7 against eps 1e-4
    assert 0.0 < float(tiny[0]) < 0.01
