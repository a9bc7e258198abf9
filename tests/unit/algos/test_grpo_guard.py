"""The ratio without bias: its identity, its mean, its weights, and where it doesn't apply."""

from __future__ import annotations

import math
from types import SimpleNamespace

import pytest
import torch

from robopo.algos.choices import Ratio
from robopo.algos.flow_dppo import DivergenceMask
from robopo.algos.grpo_guard import NormalizedRatio
from robopo.errors import ConfigError
from robopo.policies.config import Reduce
from tests.unit.algos.ratio_fakes import DIMS, ROWS, FakeFlow, perturb, rollout

UNIT = torch.tensor([5, 0, 13, 17])  # (decision, step): (1, 2), (0, 0), (4, 1), (5, 2)


@pytest.mark.parametrize("reduce", list(Reduce))
def test_equals_the_published_form(reduce: Reduce) -> None:
    """log r~ = sd (log r_mean + |d|^2 / (2 sd^2 D)) = z.d / D, from log-probs alone on the left."""
    policy = FakeFlow(reduce=reduce)
    data = rollout(policy)
    perturb(policy)
    out = NormalizedRatio().evaluate(policy, data, UNIT)
    decision, i = UNIT // 3, UNIT % 3
    x_in, x_out = data.latents[decision, i], data.latents[decision, i + 1]
    new = policy.elementwise(data.rows(decision), x_in, x_out, i).mean((1, 2))
    old = data.log_probs[decision, i] / (1 if reduce is Reduce.MEAN else DIMS)
    d = (policy.step_moments(data.rows(decision), x_in, i).mean - data.means[decision, i])[:, :ROWS]
    kl = d.square().mean((1, 2)) / (2 * 0.2**2)
    torch.testing.assert_close(out.log_ratio[:, 0], 0.2 * (new - old + kl), atol=1e-10, rtol=0)
    assert out.divergence is not None
    torch.testing.assert_close(out.divergence[:, 0], kl * (1 if reduce is Reduce.MEAN else DIMS), atol=1e-10, rtol=0)
    assert out.step is not None and out.step.equal(i)


def test_mean_of_the_log_is_zero_where_the_plain_one_is_biased() -> None:
    policy = FakeFlow(steps=1)
    data = rollout(policy, 20_000)
    perturb(policy, 0.3)
    with torch.no_grad():
        out = NormalizedRatio().evaluate(policy, data, torch.arange(20_000))
    log_ratio = out.log_ratio[:, 0]
    assert log_ratio.std() > 0.01
    assert abs(float(log_ratio.mean())) < 3 * float(log_ratio.std()) / math.sqrt(20_000)


def test_loss_weight_is_one_over_the_length_of_the_step() -> None:
    policy = FakeFlow()
    data = rollout(policy)
    # times 1, 4/9, 1/9, 0: lengths 5/9, 3/9, 1/9
    weight = NormalizedRatio().evaluate(policy, data, UNIT).loss_weight
    torch.testing.assert_close(weight, torch.tensor([[9.0], [1.8], [3.0], [9.0]], dtype=torch.float64))
    assert NormalizedRatio(step_weight=False).evaluate(policy, data, UNIT).loss_weight is None
    # an unchanged head in front: the fine-tuned steps are the last ones of the sampler
    policy.process.step_sizes = torch.cat([torch.tensor([9.0, 9.0]), policy.process.step_sizes])
    assert NormalizedRatio().evaluate(policy, data, UNIT).loss_weight.equal(weight)


def test_exact_direction_of_the_mask() -> None:
    """The mask blocks a step exactly where following A r~ raises its KL."""
    policy = FakeFlow(steps=1)
    data = rollout(policy, 400)
    perturb(policy, 0.3)
    unit = torch.arange(400)
    mean = policy.step_moments(data.obs, data.latents[:, 0], unit * 0).mean.detach().requires_grad_()
    policy.step_moments = lambda obs, x, i: type(policy).step_moments(policy, obs, x, i)._replace(mean=mean)
    out = NormalizedRatio().evaluate(policy, data, unit)
    adv = torch.randn(400, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    (up,) = torch.autograd.grad((adv * out.log_ratio.exp()).sum(), mean, retain_graph=True)
    (away,) = torch.autograd.grad(out.divergence.sum(), mean)
    blocked = DivergenceMask(delta=1e-12).surrogate(out, adv, num_steps=1).blocked[:, 0]
    assert blocked.equal((up * away).sum((1, 2)) > 0)
    assert 100 < int(blocked.sum()) < 300


def test_units_leave_out_inactive_steps_and_unused_decisions() -> None:
    ratio: Ratio = NormalizedRatio()
    policy = FakeFlow()
    active = torch.ones(6, 3, dtype=torch.bool)
    active[:, 2] = False
    use = torch.tensor([True, False, False, True, False, False])
    data = rollout(policy, active=active, use=use)
    assert ratio.units(data).tolist() == [0, 1, 9, 10]
    assert ratio.decision(data, ratio.units(data)).tolist() == [0, 0, 3, 3]
    assert ratio.units(rollout(policy)).tolist() == list(range(18))


def test_check() -> None:
    NormalizedRatio().check(FakeFlow())
    with pytest.raises(ConfigError, match=r"NormalizedRatio with a FakeFlow whose std is learned.*Chain"):
        NormalizedRatio().check(FakeFlow(learned=True))
    diffusion = FakeFlow()
    diffusion.process = SimpleNamespace(step_sizes=None)
    with pytest.raises(ConfigError, match=r"NormalizedRatio .*FakeFlow have no length.*step_weight=false"):
        NormalizedRatio().check(diffusion)
    NormalizedRatio(step_weight=False).check(diffusion)
    mixture = FakeFlow()
    mixture.has_moments = False
    with pytest.raises(ConfigError, match="NormalizedRatio"):
        NormalizedRatio().check(mixture)
