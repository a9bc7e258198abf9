"""The chain ratio against products of densities, its scale, inactive steps, and learned noise."""

from __future__ import annotations

import pytest
import torch

from robopo.algos.choices import Ratio
from robopo.algos.reinflow import Chain
from robopo.errors import ConfigError, ShapeError
from robopo.policies.config import Reduce
from tests.unit.algos.ratio_fakes import DIMS, FakeFlow, perturb, rollout

UNIT = torch.tensor([4, 0, 3])


def joint(policy: FakeFlow, data, unit) -> torch.Tensor:
    """Sum over steps of the joint log-densities of the executed rows, step by step [B]."""
    total = torch.zeros(len(unit), dtype=torch.float64)
    for k in range(policy.ft_steps):
        x_in, x_out = data.latents[unit, k], data.latents[unit, k + 1]
        total = total + policy.elementwise(data.rows(unit), x_in, x_out, torch.full((len(unit),), k)).sum((1, 2))
    return total


@pytest.mark.parametrize("learned", [False, True])
@pytest.mark.parametrize("reduce", list(Reduce))
def test_ratio_of_products_of_densities(reduce: Reduce, learned: bool) -> None:
    policy = FakeFlow(reduce=reduce, learned=learned)
    data = rollout(policy)
    before = joint(policy, data, UNIT).detach()
    same = Chain().evaluate(policy, data, UNIT)
    torch.testing.assert_close(same.log_ratio, torch.zeros(3, 1, dtype=torch.float64), atol=1e-12, rtol=0)
    assert same.divergence is not None and same.divergence.abs().max() < 1e-12
    perturb(policy)
    log_ratio = (joint(policy, data, UNIT) - before)[:, None]
    out = Chain().evaluate(policy, data, UNIT)
    torch.testing.assert_close(out.log_ratio, log_ratio / ((3 + 1) * DIMS), atol=1e-12, rtol=0)
    plain = Chain(normalised=False).evaluate(policy, data, UNIT)
    expected = log_ratio / (DIMS if reduce is Reduce.MEAN else 1)
    torch.testing.assert_close(plain.log_ratio, expected, atol=1e-12, rtol=0)
    assert out.step is None


@pytest.mark.parametrize("learned", [False, True])
def test_divergence_is_the_sum_of_the_steps_kls_on_the_same_scale(learned: bool) -> None:
    policy = FakeFlow(learned=learned)
    data = rollout(policy)
    perturb(policy)
    expected = torch.zeros(3, dtype=torch.float64)
    for k in range(3):
        mean, std = policy.step_moments(data.rows(UNIT), data.latents[UNIT, k], torch.full((3,), k))
        old = torch.distributions.Normal(data.means[UNIT, k], data.stds[UNIT, k].expand_as(mean))
        new = torch.distributions.Normal(mean, std.expand_as(mean))
        expected = expected + torch.distributions.kl_divergence(old, new)[:, :2].sum((1, 2))
    out = Chain().evaluate(policy, data, UNIT)
    torch.testing.assert_close(out.divergence, expected[:, None] / (4 * DIMS), atol=1e-12, rtol=0)


def test_rows_that_are_not_executed_do_not_count() -> None:
    policy = FakeFlow(steps=1)
    data = rollout(policy)
    perturb(policy)
    out = Chain().evaluate(policy, data, UNIT)
    data.latents[:, 1, 2:] += 5.0  # the last step's output beyond Ta
    assert Chain().evaluate(policy, data, UNIT).log_ratio.equal(out.log_ratio)


def test_gradient_reaches_velocity_and_noise() -> None:
    policy = FakeFlow(learned=True)
    data = rollout(policy)
    Chain().evaluate(policy, data, UNIT).log_ratio.sum().backward()
    assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in policy.trainable())
    assert policy.log_std.grad is not None
    assert policy.log_std.grad[2:].abs().max() == 0.0  # the row that isn't executed


def test_an_inactive_step_adds_nothing_even_without_noise() -> None:
    policy = FakeFlow(learned=True)
    data = rollout(policy)
    active = torch.ones(6, 3, dtype=torch.bool)
    active[:, 1] = False
    silent = rollout(policy, active=active)
    silent.stds[:, 1] = 0.0
    silent.latents[:, 2] = 7.0
    data.latents[:, 2] = 7.0
    perturb(policy)
    out = Chain(normalised=False).evaluate(policy, silent, UNIT)
    one, two = (
        policy.elementwise(data.rows(UNIT), data.latents[UNIT, k], data.latents[UNIT, k + 1], torch.full((3,), k))
        for k in (0, 2)
    )
    old = [
        torch.distributions.Normal(data.means[UNIT, k], data.stds[UNIT, k]).log_prob(data.latents[UNIT, k + 1])[:, :2]
        for k in (0, 2)
    ]
    expected = (one + two - old[0] - old[1]).sum((1, 2))[:, None]
    torch.testing.assert_close(out.log_ratio, expected, atol=1e-10, rtol=1e-10)
    (out.log_ratio.sum() + out.divergence.sum()).backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in policy.trainable())


def test_units() -> None:
    ratio: Ratio = Chain()
    policy = FakeFlow()
    assert ratio.units(rollout(policy)).tolist() == list(range(6))
    use = torch.tensor([True, True, False, True, True, True])
    active = torch.ones(6, 3, dtype=torch.bool)
    active[4] = False
    data = rollout(policy, use=use, active=active)
    assert ratio.units(data).tolist() == [0, 1, 3, 5]
    assert ratio.decision(data, UNIT).equal(UNIT)


def test_check() -> None:
    policy = FakeFlow()
    Chain().check(policy)
    with pytest.raises(ShapeError, match="no means and stds"):
        Chain().evaluate(policy, rollout(policy, means=None), UNIT)
    policy.has_moments = False
    with pytest.raises(ConfigError, match=r"ratio=Chain .*FakeFlow has none.*PerStep"):
        Chain().check(policy)
