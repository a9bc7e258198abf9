"""The mixture policy: its density, that its gradient is not clamped away, and that it holds two ways at once."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Categorical, Independent, MixtureSameFamily, Normal

from robopo.algos.bc import BC, BCConfig
from robopo.nn.gaussian_mlp import GaussianMLPConfig
from robopo.policies.base import PolicySpec
from robopo.policies.config import Reduce
from robopo.policies.one_step import OneStepConfig
from tests.unit.policies.toy_one_step import SPEC, gmm, make_obs, rng

I0 = torch.zeros(5, dtype=torch.long)


def test_density_is_the_marginal_mixture_of_the_executed_rows() -> None:
    policy, obs = gmm(), make_obs()
    std = torch.linspace(0.05, 0.15, 10).view(5, 2)
    with torch.no_grad():
        policy.net.log_var.copy_(2.0 * std.log())
    x = 0.3 * torch.randn(5, 4, 2, generator=rng())
    logits, out = policy.net(policy.encode(obs))
    modes = Independent(Normal(out.tanh()[:, :, :3], std[:, None].expand(-1, 3, -1)), 2)
    joint = MixtureSameFamily(Categorical(logits=logits), modes).log_prob(x[:, :3])
    torch.testing.assert_close(policy.step_log_prob(obs, torch.zeros_like(x), x, I0), joint / 6)
    policy.config = replace(policy.config, reduce=Reduce.SUM)
    torch.testing.assert_close(policy.step_log_prob(obs, torch.zeros_like(x), x, I0), joint)


def test_one_mode_is_the_gaussian() -> None:
    policy, obs = gmm(net=GaussianMLPConfig(hidden=(32, 32, 32), num_modes=1)), make_obs()
    x = torch.zeros(5, 4, 2)
    mean = policy.net(policy.encode(obs)).out[:, 0, :3].tanh()
    expected = Normal(mean, torch.tensor(0.1)).log_prob(x[:, :3]).mean((1, 2))
    torch.testing.assert_close(policy.step_log_prob(obs, x, x, I0), expected)


@pytest.mark.parametrize("reduce", list(Reduce))
def test_gradient_before_the_first_update_is_not_the_zero_of_the_published_clamp(reduce) -> None:
    """28 numbers at std .1: the joint log-density is about 23, so a clamp at 2 would block every sample."""
    spec = PolicySpec(obs=SPEC.obs, action_dim=2, action_names=("x", "y"), horizon=14, action_steps=14)
    policy, obs = gmm(OneStepConfig(ft_steps=1, reduce=reduce), spec=spec), make_obs(64)
    _, chain = policy.sample_chain(obs, generator=rng())
    joint = policy.joint_log_prob(policy.encode(obs), chain.latents[:, 1])
    assert joint.min() > 2.0
    # Every number contributes -log .1 - log(2 pi) / 2 - 1 / 2, the draw of the mode log(1 / 5) at the least.
    assert joint.mean().item() == pytest.approx(28 * (-math.log(0.1) - 0.5 * math.log(2 * math.pi) - 0.5), abs=2.0)
    clamped = torch.autograd.grad(
        joint.clamp(-5.0, 2.0).sum(), policy.trainable(), allow_unused=True, retain_graph=True
    )
    assert all(grad is None or grad.abs().max() == 0.0 for grad in clamped)
    adv = torch.randn(64, generator=rng(3))
    ratio = (policy.replay(obs, chain.latents)[:, 0] - chain.log_probs[:, 0]).exp()
    torch.maximum(-adv * ratio, -adv * ratio.clamp(0.99, 1.01)).mean().backward()
    assert torch.equal(ratio, torch.ones(64))
    assert all(p.grad is not None and p.grad.abs().max() > 1e-4 for p in policy.trainable())


def test_cloning_fits_two_ways_where_one_gaussian_would_average_them() -> None:
    policy, obs = gmm(OneStepConfig()), make_obs(64)
    side = torch.tensor([1.0, -1.0]).repeat(32)
    action = policy.normalizer.invert("action", 0.6 * side[:, None, None].expand(-1, 4, 2))
    bc = BC(policy, BCConfig(lr=3e-3, warmup_steps=0, steps=200, ema_decay=0.9))
    for _ in range(200):
        loss = float(bc.update(obs, action, None).loss)
    # Two exact modes of weight 1/2: (8 numbers' worth - log 2) / 8.
    perfect = math.log(0.1) + 0.5 * math.log(2 * math.pi) + math.log(2.0) / 8
    assert loss == pytest.approx(perfect, abs=0.15)
    bc.finish()
    policy.begin_finetuning()
    _, chain = policy.sample_chain(make_obs(64), generator=rng())
    drawn = chain.latents[:, 1].mean((1, 2))
    assert 0.25 < (drawn > 0.4).float().mean() < 0.75
    assert (drawn.abs() - 0.6).abs().max() < 0.2  # whole chunks on one side, none in between
    chosen = policy.normalizer.apply("action", policy.act(make_obs(64)))
    assert (chosen.abs() - 0.6).abs().max() < 0.1


def test_a_padded_row_is_integrated_out_of_the_cloning_loss() -> None:
    policy, obs = gmm(OneStepConfig()), make_obs()
    action = torch.rand(5, 4, 2, generator=rng())
    pad = torch.tensor([[False, False, False, True]] * 5)
    wrong = action.clone()
    wrong[:, 3:] = 100.0
    loss = policy.bc_loss(obs, wrong, None, pad)
    joint = policy.joint_log_prob(policy.encode(obs), policy.normalizer.apply("action", action))  # Ta = 3 rows
    torch.testing.assert_close(loss, -joint.mean() / 6)


def test_chain_is_scored_as_it_was_drawn_and_has_no_moments() -> None:
    policy, obs = gmm(), make_obs()
    chunk, chain = policy.sample_chain(obs, generator=rng())
    assert not policy.has_moments
    assert chain.means is None
    assert chain.stds is None
    assert chain.latents[:, 0].abs().max() == 0.0
    torch.testing.assert_close(policy.normalizer.invert("action", chain.latents[:, 1]), chunk)
    assert torch.equal(chain.log_probs, policy.replay(obs, chain.latents))
    assert torch.equal(policy.act(obs), policy.act(obs))
