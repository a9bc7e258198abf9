"""Soft gates: slope 1 and value 1 at r = 1, half weight where they say, linear in the limit."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from robopo.algos.choices import RatioBatch, Surrogate
from robopo.algos.soft_gate import DivergenceGate, SoftGate
from robopo.errors import ConfigError
from robopo.losses.surrogates import HALF_WEIGHT, divergence_gate_loss


def column(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)[:, None]


def slope(region: SoftGate, r: Tensor, adv: Tensor) -> Tensor:
    """(dJ/dr) / A, the weight of each sample."""
    r = r.clone().requires_grad_()
    loss = region.surrogate(RatioBatch(r.log(), None), adv, num_steps=1).loss
    return torch.autograd.grad(-loss.sum(), r)[0] / adv


@pytest.mark.parametrize("eps", [0.01, 0.05, 0.2])
def test_weights(eps: float) -> None:
    region, adv = SoftGate(eps), column(1.0, -2.0)
    one = torch.ones_like(adv)
    torch.testing.assert_close(slope(region, one, adv), one, atol=1e-12, rtol=0)
    torch.testing.assert_close(region.surrogate(RatioBatch(0 * one, None), adv, num_steps=1).loss, -adv)
    half = 1.0 + eps / column(1.0, 1.05)
    for r in (half, 2.0 - half):  # symmetric: corrective moves fade as well
        torch.testing.assert_close(slope(region, r, adv), 0.5 * one, atol=1e-6, rtol=0)
    assert math.isclose(HALF_WEIGHT, 1.763, abs_tol=3e-4)


def test_equals_the_published_sigmoid_up_to_its_constant() -> None:
    r, tau = column(0.4, 0.9, 1.3, 2.0), 3.0
    region = SoftGate(tau_pos=tau, tau_neg=1.0)
    loss = region.surrogate(RatioBatch(r.log(), None), torch.ones_like(r), num_steps=1).loss
    torch.testing.assert_close(-loss, 4 / tau * torch.sigmoid(tau * (r - 1)) - 2 / tau + 1)


def test_tau_to_zero_is_linear() -> None:
    r, adv = column(0.5, 1.0, 1.7, 4.0), column(1.0, -1.0, -2.0, 1.0)
    loss = SoftGate(tau_pos=1e-6).surrogate(RatioBatch(r.log(), None), adv, num_steps=1).loss
    torch.testing.assert_close(loss, -adv * r, atol=1e-9, rtol=0)


def test_overflow_has_zero_gradient() -> None:
    log_ratio = column(1000.0, math.inf).requires_grad_()
    loss, blocked, *_ = SoftGate().surrogate(RatioBatch(log_ratio, None), column(1.0, -1.0), num_steps=1)
    loss.sum().backward()
    assert loss.isfinite().all() and blocked.all()
    assert log_ratio.grad is not None and log_ratio.grad.equal(torch.zeros_like(log_ratio))


def test_blocked_is_less_than_half() -> None:
    r = column(1.19, 1.21, 0.79, 1.195)
    blocked = SoftGate(0.2).surrogate(RatioBatch(r.log(), None), column(1.0, 1.0, 1.0, -1.0), num_steps=1).blocked
    assert blocked.flatten().tolist() == [False, True, True, True]


def gated(log_ratio: Tensor, kl: Tensor, adv: Tensor) -> Surrogate:
    batch = RatioBatch(log_ratio, kl, step=torch.zeros(len(kl), dtype=torch.long))
    return DivergenceGate(delta_chain=0.08).surrogate(batch, adv, num_steps=4)  # delta = .02


def test_divergence_gate_by_hand() -> None:
    # KL .05 = 2.5 delta: weight e^-1.5. Leading back (A < 0, log r > KL) and within delta: weight 1.
    log_ratio = column(0.1, 0.1, 0.1, -0.1).requires_grad_()
    kl, adv = column(0.05, 0.05, 0.02, 0.03), column(1.0, -1.0, 1.0, -1.0)
    loss, blocked, *_ = gated(log_ratio, kl, adv)
    weight = column(math.exp(-1.5), 1.0, 1.0, math.exp(-0.5))
    torch.testing.assert_close(loss, -adv * weight * log_ratio.exp())
    (gradient,) = torch.autograd.grad(loss.sum(), log_ratio)
    torch.testing.assert_close(gradient, (-adv * weight * log_ratio.exp()).detach())
    assert blocked.flatten().tolist() == [True, False, False, False]


def test_divergence_gate_sends_no_gradient_through_the_divergence() -> None:
    kl, log_ratio = column(0.05).requires_grad_(), column(0.1).requires_grad_()
    away = torch.tensor([[True]])
    loss = divergence_gate_loss(log_ratio=log_ratio, adv=column(1.0), divergence=kl, away=away, delta=0.02)
    assert torch.autograd.grad(loss.sum(), kl, allow_unused=True)[0] is None


def test_errors() -> None:
    with pytest.raises(ConfigError, match="tau_neg=-1"):
        SoftGate(tau_neg=-1.0)
    with pytest.raises(ConfigError, match="delta_chain=-1"):
        DivergenceGate(delta_chain=-1.0)
    with pytest.raises(ConfigError, match="DivergenceGate needs a divergence"):
        DivergenceGate().surrogate(RatioBatch(column(0.1), None), column(1.0), num_steps=1)
