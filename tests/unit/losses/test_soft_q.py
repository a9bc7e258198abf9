"""The losses of soft and conservative Q-learning."""

from __future__ import annotations

import math

import pytest
import torch

from robopo.losses.soft_q import conservative_penalty, soft_actor_loss, temperature_loss, uniform_log_density


def test_uniform_log_density_is_a_logarithm() -> None:
    """Regression: the published code takes 0.5^d = 3.7e-9 for 28 numbers, the right one is -19.4."""
    assert uniform_log_density(28) == pytest.approx(-19.408, abs=1e-3)
    uniform = torch.distributions.Uniform(-torch.ones(28), torch.ones(28))
    assert uniform_log_density(28) == pytest.approx(float(uniform.log_prob(torch.zeros(28)).sum()), rel=1e-6)


def test_soft_actor_loss_by_hand() -> None:
    loss = soft_actor_loss(q=torch.tensor([1.0, 3.0]), log_prob=torch.tensor([2.0, 4.0]), alpha=torch.tensor(0.5))
    assert float(loss) == pytest.approx((0.5 * 2 - 1 + 0.5 * 4 - 3) / 2)


def test_too_little_entropy_raises_alpha() -> None:
    for log_prob, sign in ((5.0, -1.0), (-5.0, 1.0)):  # entropy -5 or 5 against a target of -2
        log_alpha = torch.tensor(0.0, requires_grad=True)
        loss = temperature_loss(log_alpha=log_alpha, log_prob=torch.tensor([log_prob]), target_entropy=-2.0)
        (grad,) = torch.autograd.grad(loss, log_alpha)
        assert float(grad) == pytest.approx(-(log_prob - 2.0))
        assert math.copysign(1.0, float(grad)) == sign


def test_penalty_by_hand() -> None:
    """One head, one decision, d = 2: random Q 1, policy Q 0 raised to the return .5, density e^-1, data Q .2."""
    penalty = conservative_penalty(
        q_data=torch.tensor([[0.2]]),
        q_random=torch.tensor([[[1.0]]]),
        q_policy=torch.tensor([[[0.0]]]),
        log_prob=torch.tensor([[-1.0]]),
        floor=torch.tensor([0.5]),
        dims=2,
    )
    assert float(penalty) == pytest.approx(math.log(math.exp(1.0 + 2 * math.log(2.0)) + math.exp(0.5 + 1.0)) - 0.2)


def test_penalty_pushes_no_policy_action_below_its_floor_and_ignores_a_missing_one() -> None:
    q = torch.tensor([[[0.0, 2.0]]], requires_grad=True)
    rest = {
        "q_data": torch.zeros(1, 2),
        "q_random": torch.zeros(1, 1, 2),
        "log_prob": torch.zeros(1, 2),
        "dims": 1,
    }
    (grad,) = torch.autograd.grad(conservative_penalty(q_policy=q, floor=torch.tensor([1.0, 1.0]), **rest), q)
    assert grad[0, 0, 0] == 0.0
    assert grad[0, 0, 1] > 0.0
    (grad,) = torch.autograd.grad(conservative_penalty(q_policy=q, floor=torch.full((2,), -torch.inf), **rest), q)
    assert (grad > 0.0).all()


def test_log_sum_exp_estimates_the_integral_over_actions() -> None:
    """With Q constant c the corrected mean over uniform actions is c + log of the volume, whatever the dimension."""
    for dims in (1, 4):
        penalty = conservative_penalty(
            q_data=torch.zeros(1, 1),
            q_random=torch.full((1, 1, 1), 0.7),
            q_policy=torch.full((1, 1, 1), -torch.inf),
            log_prob=torch.zeros(1, 1),
            floor=torch.tensor([-torch.inf]),
            dims=dims,
        )
        assert float(penalty) == pytest.approx(0.7 + dims * math.log(2.0), rel=1e-6)
