"""The divergence mask: its truth table, overflow, and the bound it holds on a single sample."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from robopo.algos.choices import RatioBatch, TrustRegion
from robopo.algos.flow_dppo import DivergenceMask
from robopo.errors import ConfigError
from robopo.losses.divergence import MaskDirection, gaussian_kl, gaussian_log_ratio

DELTA = 0.02


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def ratio_batch(log_ratio: Tensor, divergence: Tensor | None, *, step: bool = True) -> RatioBatch:
    return RatioBatch(log_ratio, divergence, step=torch.zeros(len(log_ratio), dtype=torch.long) if step else None)


@pytest.mark.parametrize("direction", list(MaskDirection))
@pytest.mark.parametrize("kl", [0.0, DELTA, 2 * DELTA])
@pytest.mark.parametrize("r", [0.9, 1.0, 1.1])
@pytest.mark.parametrize("adv", [-1.0, 0.0, 1.0])
def test_truth_table(adv: float, r: float, kl: float, direction: MaskDirection) -> None:
    log_ratio = column(math.log(r)).requires_grad_()
    region = DivergenceMask(delta=DELTA, direction=direction)
    loss, blocked, *_ = region.surrogate(ratio_batch(log_ratio, column(kl)), column(adv), num_steps=4)
    if direction is MaskDirection.PAPER:
        away = (adv > 0 and r > 1) or (adv < 0 and r < 1)
    else:
        # log .9 = -.105, log 1 = 0, log 1.1 = .095 against KL .02 and .04: r = 1 with A < 0 differs from the paper
        away = (adv > 0 and r == 1.1) or (adv < 0 and r in (0.9, 1.0))
    expected = kl >= DELTA and away
    assert bool(blocked) is expected
    loss.sum().backward()
    assert log_ratio.grad is not None
    if expected:
        assert float(loss.detach()) == 0.0 and float(log_ratio.grad) == 0.0
    else:
        assert float(loss.detach()) == pytest.approx(-adv * r)
        assert float(log_ratio.grad) == pytest.approx(-adv * r)


def test_where_the_directions_disagree() -> None:
    """0 < log r < KL: exact passes A > 0 and holds A < 0 back, the paper the other way round, either holds both."""
    ratio, adv = ratio_batch(column(0.05, 0.05), column(0.1, 0.1)), column(1.0, -1.0)
    blocked = {
        d: DivergenceMask(delta=0.1, direction=d).surrogate(ratio, adv, num_steps=1).blocked for d in MaskDirection
    }
    assert blocked[MaskDirection.EXACT].flatten().tolist() == [False, True]
    assert blocked[MaskDirection.PAPER].flatten().tolist() == [True, False]
    assert blocked[MaskDirection.EITHER].flatten().tolist() == [True, True]


def test_overflowing_ratios_give_no_nan() -> None:
    """exp overflows to inf in every row; masked and capped rows have a loss and a gradient of exactly 0 or the cap."""
    log_ratio = column(1000.0, math.inf, 1000.0, 1000.0).requires_grad_()
    adv = column(1.0, 1.0, -1.0, 0.0)
    region = DivergenceMask(delta=DELTA)
    loss, blocked, *_ = region.surrogate(ratio_batch(log_ratio, column(1.0, math.inf, 1.0, 1.0)), adv, num_steps=1)
    loss.sum().backward()
    assert blocked.flatten().tolist() == [True, True, False, False]
    torch.testing.assert_close(loss.detach(), column(0.0, 0.0, 3.0, 0.0))
    assert log_ratio.grad is not None
    assert log_ratio.grad.equal(torch.zeros_like(log_ratio))


def test_dual_clip_can_be_left_out() -> None:
    log_ratio = column(2.0)
    batch = ratio_batch(log_ratio, column(0.0))
    assert float(DivergenceMask(dual_clip=None).surrogate(batch, column(-1.0), num_steps=1).loss) == pytest.approx(
        math.exp(2.0)
    )
    assert float(DivergenceMask(dual_clip=2.0).surrogate(batch, column(-1.0), num_steps=1).loss) == pytest.approx(2.0)
    assert float(DivergenceMask(dual_clip=2.0).surrogate(batch, column(1.0), num_steps=1).loss) == pytest.approx(
        -math.exp(2.0)
    )


def test_first_minibatch_is_reinforce() -> None:
    adv = column(0.7, -1.3, 0.0)
    logp = column(-1.0, 0.2, 3.0).requires_grad_()
    batch = ratio_batch(logp - logp.detach(), torch.zeros_like(adv))
    loss, blocked, *_ = DivergenceMask().surrogate(batch, adv, num_steps=4)
    (gradient,) = torch.autograd.grad(loss.mean(), logp, retain_graph=True)
    (reinforce,) = torch.autograd.grad(-(adv * logp).mean(), logp)
    assert not blocked.any()
    torch.testing.assert_close(gradient, reinforce, atol=1e-15, rtol=0)


def test_steps_share_the_budget_of_the_chain_and_chains_have_it_alone() -> None:
    region, adv, kl = DivergenceMask(delta_chain=0.08), column(1.0, 1.0, 1.0), column(0.019, 0.02, 0.081)
    log_ratio = column(0.5, 0.5, 0.5)
    blocked = region.surrogate(ratio_batch(log_ratio, kl), adv, num_steps=4).blocked
    assert blocked.flatten().tolist() == [False, True, True]
    blocked = region.surrogate(ratio_batch(log_ratio, kl, step=False), adv, num_steps=4).blocked
    assert blocked.flatten().tolist() == [False, False, True]


def test_pivot_replaces_the_divergence_in_the_direction_test_alone() -> None:
    batch = ratio_batch(column(0.01, 0.01), column(0.5, 0.0))
    adv = column(1.0, 1.0)
    region = DivergenceMask(delta=DELTA)
    assert not region.surrogate(batch, adv, num_steps=1).blocked.any()  # log r < KL: the step leads back
    moved = region.surrogate(batch._replace(pivot=column(0.0, 0.0)), adv, num_steps=1).blocked
    assert moved.flatten().tolist() == [True, False]


@pytest.mark.parametrize("adv", [1.0, -1.0])
def test_one_sample_can_not_push_kl_past_the_threshold_by_more_than_a_step(adv: float) -> None:
    std = torch.tensor(0.2, dtype=torch.float64)
    old = torch.zeros(1, 4, dtype=torch.float64)
    x = old + std * torch.tensor([[1.0, -0.5, 0.3, 2.0]], dtype=torch.float64)
    mean = old.clone().requires_grad_()
    region, rate, largest, last = DivergenceMask(delta=DELTA), 1e-3, 0.0, 0.0
    free = old.clone().requires_grad_()
    for _ in range(100):
        log_ratio = gaussian_log_ratio(x, old_mean=old, old_std=std, new_mean=mean, new_std=std).sum(1, keepdim=True)
        kl = gaussian_kl(old_mean=old, old_std=std, new_mean=mean, new_std=std).sum(1, keepdim=True)
        largest, last = max(largest, float(kl.detach()) - last), float(kl.detach())
        loss, blocked, *_ = region.surrogate(ratio_batch(log_ratio, kl), column(adv), num_steps=1)
        (gradient,) = torch.autograd.grad(loss.sum(), mean)
        mean = (mean.detach() - rate * gradient).requires_grad_()
        unmasked = gaussian_log_ratio(x, old_mean=old, old_std=std, new_mean=free, new_std=std).sum()
        (gradient,) = torch.autograd.grad(-adv * unmasked.exp(), free)
        free = (free.detach() - rate * gradient).requires_grad_()
    assert bool(blocked)
    assert DELTA <= last <= DELTA + largest
    without = float(gaussian_kl(old_mean=old, old_std=std, new_mean=free.detach(), new_std=std).sum())
    assert without > 2 * DELTA


def test_settings_and_errors() -> None:
    region: TrustRegion = DivergenceMask(direction="paper")  # type: ignore[arg-type]
    assert region.needs_divergence
    assert DivergenceMask(direction="exact") == DivergenceMask()  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"'papers'.*did you mean 'paper'"):
        DivergenceMask(direction="papers")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="delta_chain=0"):
        DivergenceMask(delta_chain=0)
    with pytest.raises(ConfigError, match="delta=-1"):
        DivergenceMask(delta=-1)
    with pytest.raises(ConfigError, match="dual_clip=1"):
        DivergenceMask(dual_clip=1.0)
    with pytest.raises(ConfigError, match="DivergenceMask needs a divergence"):
        region.surrogate(ratio_batch(column(0.1), None), column(1.0), num_steps=1)
