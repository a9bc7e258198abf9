"""The clipped objective and its schedules, with numbers worked out by hand."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

from robopo.losses.surrogates import aspo_loss, masked_loss, soft_gate_loss, spo_loss
from robopo.losses.trust_region import (
    clip_schedule,
    clip_to_quantiles,
    denoising_discount,
    kl_k3,
    normalize_advantage,
    ppo_clip,
    value_loss,
)


def test_clip_schedule_of_ten_steps() -> None:
    expected = [0.001, 0.00119, 0.00145, 0.00181, 0.00232, 0.00303, 0.00401, 0.00539, 0.00732, 0.01]
    found = clip_schedule(ft_steps=10, base=0.001, coef=0.01, rate=3.0)
    torch.testing.assert_close(found, torch.tensor(expected), atol=5e-6, rtol=0)


def test_clip_schedule_edge_cases() -> None:
    assert clip_schedule(ft_steps=0, base=0.001, coef=0.01, rate=3.0).shape == (0,)
    torch.testing.assert_close(clip_schedule(ft_steps=1, base=0.001, coef=0.01, rate=3.0), torch.tensor([0.01]))
    torch.testing.assert_close(clip_schedule(ft_steps=4, base=0.01, coef=0.01, rate=3.0), torch.full((4,), 0.01))
    linear = clip_schedule(ft_steps=3, base=0.0, coef=1.0, rate=0.0)
    torch.testing.assert_close(linear, torch.tensor([0.0, 0.5, 1.0]))


def test_denoising_discount() -> None:
    torch.testing.assert_close(denoising_discount(ft_steps=3, gamma=0.9), torch.tensor([0.81, 0.9, 1.0]))
    torch.testing.assert_close(denoising_discount(ft_steps=3, gamma=0.0), torch.tensor([0.0, 0.0, 1.0]))
    assert denoising_discount(ft_steps=0, gamma=0.9).shape == (0,)


def test_normalized_advantage_ignores_a_constant_and_survives_one_sample() -> None:
    adv = torch.tensor([1.0, 2.0, 3.0])
    expected = torch.tensor([-1.0, 0.0, 1.0]) * math.sqrt(1.5)
    torch.testing.assert_close(normalize_advantage(adv), expected)
    torch.testing.assert_close(normalize_advantage(adv + 7.0), expected)
    torch.testing.assert_close(normalize_advantage(torch.tensor([4.0])), torch.zeros(1))


def test_quantile_clip() -> None:
    adv = torch.arange(5.0)
    assert clip_to_quantiles(adv, low=0.0, high=1.0) is adv
    torch.testing.assert_close(clip_to_quantiles(adv, low=0.25, high=0.75), torch.tensor([1.0, 1.0, 2.0, 3.0, 3.0]))


def test_clip_loss_by_hand() -> None:
    # ratios 1.2, .8, 1.2, .8 with advantages 1, 1, -1, -1 and clip .1:
    # max(-1.2, -1.1) = -1.1; max(-.8, -.9) = -.8; max(1.2, 1.1) = 1.2; max(.8, .9) = .9
    ratio = torch.tensor([1.2, 0.8, 1.2, 0.8])
    adv = torch.tensor([1.0, 1.0, -1.0, -1.0])
    out = ppo_clip(log_ratio=ratio.log(), adv=adv, clip=torch.tensor(0.1))
    torch.testing.assert_close(out.loss, torch.tensor([-1.1, -0.8, 1.2, 0.9]))
    assert out.outside.all()
    assert out.blocked.tolist() == [True, False, False, True]
    # (1.2 - 1 - ln 1.2 + .8 - 1 - ln .8) / 2 = (0.0176784 + 0.0231436) / 2
    torch.testing.assert_close(kl_k3(ratio.log()), torch.tensor(0.020411), atol=1e-6, rtol=0)
    assert kl_k3(torch.tensor([200.0])).isfinite()


def test_blocked_values_are_those_without_a_gradient() -> None:
    log_ratio = torch.tensor([1.2, 0.8, 1.2, 0.8, 1.0, 4.0, 4.0, 1.2]).log().requires_grad_()
    adv = torch.tensor([1.0, 1.0, -1.0, -1.0, 1.0, -1.0, 1.0, 0.0])
    for cap in (None, 3.0):
        out = ppo_clip(log_ratio=log_ratio, adv=adv, clip=torch.tensor(0.1), ratio_cap=cap)
        (gradient,) = torch.autograd.grad(out.loss.sum(), log_ratio)
        assert ((gradient == 0) & (adv != 0)).equal(out.blocked)
    # dual clip: at ratio 4 and advantage -1 the loss is 3, not 4
    assert out.loss[5] == 3.0
    assert out.blocked[5]


def test_a_ratio_that_overflows_is_held_back_without_nan() -> None:
    """exp(1000) is infinite; 0 times its derivative must be 0 wherever the clip or the cap stops the gradient."""
    log_ratio = torch.tensor([1000.0, 1000.0, -1000.0, 0.05]).requires_grad_()
    adv = torch.tensor([2.0, -2.0, -2.0, 2.0])
    out = ppo_clip(log_ratio=log_ratio, adv=adv, clip=torch.tensor(0.1), ratio_cap=3.0)
    torch.testing.assert_close(out.loss, torch.tensor([-2.2, 6.0, 1.8, -2.0 * math.exp(0.05)]))
    assert out.blocked.tolist() == [True, True, True, False]
    (gradient,) = torch.autograd.grad(out.loss.sum(), log_ratio)
    torch.testing.assert_close(gradient, torch.tensor([0.0, 0.0, 0.0, -2.0 * math.exp(0.05)]))
    # without the cap, a negative advantage alone sees the infinite ratio, as PPO's objective says
    plain = ppo_clip(log_ratio=log_ratio[:1], adv=adv[:1], clip=torch.tensor(0.1))
    assert torch.autograd.grad(plain.loss.sum(), log_ratio)[0].tolist() == [0.0] * 4


@pytest.mark.parametrize(
    "loss",
    [
        lambda log_ratio, adv: ppo_clip(log_ratio=log_ratio, adv=adv, clip=torch.tensor(0.1)).loss,
        lambda log_ratio, adv: masked_loss(log_ratio=log_ratio, adv=adv, keep=torch.ones_like(adv, dtype=torch.bool)),
        lambda log_ratio, adv: spo_loss(log_ratio=log_ratio, adv=adv, eps=0.2),
        lambda log_ratio, adv: aspo_loss(log_ratio=log_ratio, adv=adv, eps=0.2),
        lambda log_ratio, adv: soft_gate_loss(log_ratio=log_ratio, adv=adv, tau_pos=8.0, tau_neg=8.0),
    ],
    ids=["clip", "mask", "spo", "aspo", "soft_gate"],
)
def test_a_sample_without_advantage_has_no_say_however_large_its_ratio(loss: Any) -> None:
    """No region holds it back (gamma_denoise=0 and positive parts make such samples), and 0 times infinity is NaN."""
    log_ratio = torch.tensor([1000.0, -1000.0, 0.05]).requires_grad_()
    found = loss(log_ratio, torch.zeros(3))
    assert found.tolist() == [0.0] * 3
    assert torch.autograd.grad(found.sum(), log_ratio)[0].tolist() == [0.0] * 3


def test_holding_back_leaves_loss_and_gradient_of_ordinary_ratios_bit_for_bit() -> None:
    """Against eq. 7 as it is written: the larger of the plain and the clipped term."""
    generator = torch.Generator().manual_seed(0)
    log_ratio = (0.3 * torch.randn(5000, generator=generator)).requires_grad_()
    adv = torch.randn(5000, generator=generator)
    ratio = log_ratio.exp()
    expected = torch.maximum(-adv * ratio, -adv * ratio.clamp(0.9, 1.1))
    out = ppo_clip(log_ratio=log_ratio, adv=adv, clip=torch.tensor(0.1))
    assert out.loss.equal(expected)
    found, wanted = (torch.autograd.grad(loss.sum(), log_ratio)[0] for loss in (out.loss, expected))
    assert found.equal(wanted)


def test_each_pair_has_its_own_clip() -> None:
    log_ratio = torch.tensor([1.2, 1.2]).log()
    clip = torch.tensor([0.1, 0.3])
    out = ppo_clip(log_ratio=log_ratio, adv=torch.ones(2), clip=clip)
    torch.testing.assert_close(out.loss, torch.tensor([-1.1, -1.2]))
    assert out.outside.tolist() == [True, False]


def test_at_ratio_one_the_gradient_is_the_policy_gradient() -> None:
    """d loss / d log-ratio = -A at the old parameters, whatever the clip (finite differences in float64)."""
    adv = torch.tensor([0.7, -1.3, 0.2], dtype=torch.float64)
    log_ratio = torch.zeros(3, dtype=torch.float64, requires_grad=True)
    clip = torch.full((3,), 0.05, dtype=torch.float64)
    out = ppo_clip(log_ratio=log_ratio, adv=adv, clip=clip)
    torch.testing.assert_close(out.loss, -adv)
    (gradient,) = torch.autograd.grad(out.loss.sum(), log_ratio)
    torch.testing.assert_close(gradient, -adv)
    h = 1e-6
    up, down = (ppo_clip(log_ratio=torch.full_like(adv, shift), adv=adv, clip=clip).loss for shift in (h, -h))
    torch.testing.assert_close((up - down) / (2 * h), gradient, atol=1e-8, rtol=1e-6)


def test_value_loss() -> None:
    value, returns, old = torch.tensor([1.0, 3.0]), torch.tensor([0.0, 1.0]), torch.tensor([1.0, 1.0])
    torch.testing.assert_close(value_loss(value=value, returns=returns), torch.tensor(1.25))
    # clipped values 1, 1.5: errors max(1, 1) = 1 and max(4, .25) = 4
    torch.testing.assert_close(value_loss(value=value, returns=returns, old_value=old, clip=0.5), torch.tensor(1.25))
    # moving towards the return by more than the clip: value 0 -> error 0, clipped 0.5 -> error .25
    near = value_loss(value=torch.zeros(1), returns=torch.zeros(1), old_value=torch.ones(1), clip=0.5)
    torch.testing.assert_close(near, torch.tensor(0.125))
    with pytest.raises(ValueError, match="old_value"):
        value_loss(value=value, returns=returns, clip=0.5)
