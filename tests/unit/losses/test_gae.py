"""Advantages worked out by hand, and the boundaries between episodes."""

from __future__ import annotations

import torch
from torch import Tensor

from robopo.losses.gae import GAE, gae


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]  # [T, 1]


def flags(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.bool)[:, None]


def run(
    reward: Tensor,
    value: Tensor,
    next_value: Tensor,
    terminated: Tensor,
    truncated: Tensor,
    *,
    gamma: float = 0.9,
    lam: float = 0.8,
    legacy: bool = False,
) -> GAE:
    return gae(
        reward=reward,
        value=value,
        next_value=next_value,
        terminated=terminated,
        truncated=truncated,
        gamma=gamma,
        lam=lam,
        legacy=legacy,
    )


def test_two_steps_by_hand() -> None:
    # delta_1 = .5, delta_0 = .8 + .9 * .4 - .3 = .86; A_0 = .86 + .72 * .5 = 1.22
    out = run(column(0.8, 0.9), column(0.3, 0.4), column(0.4, 0.0), flags(0, 1), flags(0, 0))
    torch.testing.assert_close(out.advantage, column(1.22, 0.5))
    torch.testing.assert_close(out.returns, column(1.52, 0.9))


def test_truncation_does_not_leak_into_the_previous_episode() -> None:
    """Two 3-decision episodes, last reward 1, V = 0: the published rule adds the next episode's advantage."""
    reward, zero = column(0, 0, 1, 0, 0, 1), column(0, 0, 0, 0, 0, 0)
    truncated = flags(0, 0, 1, 0, 0, 1)
    correct = run(reward, zero, zero, flags(*[0] * 6), truncated, gamma=0.999, lam=0.95)
    legacy = run(reward, zero, zero, flags(*[0] * 6), truncated, gamma=0.999, lam=0.95, legacy=True)
    torch.testing.assert_close(correct.advantage, column(0.901, 0.949, 1, 0.901, 0.949, 1), atol=1e-3, rtol=0)
    torch.testing.assert_close(legacy.advantage, column(1.671, 1.760, 1.855, 0.901, 0.949, 1), atol=1e-3, rtol=0)


def test_truncated_and_terminated_differ_by_the_bootstrap() -> None:
    reward, value, next_value = column(0.1, 0.2), column(0.5, 0.6), column(0.6, 3.0)
    terminated = run(reward, value, next_value, flags(0, 1), flags(0, 0))
    truncated = run(reward, value, next_value, flags(0, 0), flags(0, 1))
    both = run(reward, value, next_value, flags(0, 1), flags(0, 1))
    torch.testing.assert_close((truncated.advantage - terminated.advantage)[1], torch.tensor([0.9 * 3.0]).double())
    torch.testing.assert_close(both.advantage, terminated.advantage)


def test_lambda_one_is_the_discounted_return_and_lambda_zero_the_td_error() -> None:
    generator = torch.Generator().manual_seed(0)
    reward = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    value = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    next_value = torch.cat([value[1:], torch.zeros(1, 3, dtype=torch.float64)])
    none = torch.zeros(5, 3, dtype=torch.bool)
    ends = none.clone()
    ends[-1] = True
    full = run(reward, value, next_value, ends, none, lam=1.0)
    weights = 0.9 ** torch.arange(5, dtype=torch.float64)[:, None]
    torch.testing.assert_close(full.advantage[0], (weights * reward).sum(0) - value[0])
    td = run(reward, value, next_value, ends, none, lam=0.0)
    torch.testing.assert_close(td.advantage, reward + 0.9 * next_value - value)


def test_inputs_are_left_alone() -> None:
    reward, value = column(1, 2), column(3, 4)
    run(reward, value, value, flags(0, 0), flags(0, 1))
    torch.testing.assert_close(reward, column(1, 2))
    torch.testing.assert_close(value, column(3, 4))
