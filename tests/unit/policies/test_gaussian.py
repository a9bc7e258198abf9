"""The Gaussian policy: its density, its bounds, and what each of its modes keeps or learns."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from torch.distributions import Independent, Normal

from robopo.algos.bc import BC, BCConfig
from robopo.errors import ConfigError, ShapeError
from robopo.nn.gaussian_mlp import GaussianMLPConfig, bounded_std
from robopo.policies.config import Reduce
from robopo.policies.one_step import OneStepConfig
from tests.unit.policies.toy_one_step import NET, SCRATCH, SPEC, gaussian, make_obs, normalizer, rng

I0 = torch.zeros(5, dtype=torch.long)


def test_density_is_that_of_torch_over_the_executed_rows() -> None:
    policy, obs = gaussian(), make_obs()
    with torch.no_grad():
        policy.net.log_var.copy_(2.0 * torch.tensor([0.05, 0.15]).log())
    x = torch.randn(5, 4, 2, generator=rng())
    mean = policy.net(policy.encode(obs)).tanh()[:, :3]
    joint = Independent(Normal(mean, torch.tensor([0.05, 0.15])), 2).log_prob(x[:, :3])
    torch.testing.assert_close(policy.step_log_prob(obs, torch.zeros_like(x), x, I0), joint / 6)
    policy.config = replace(policy.config, reduce=Reduce.SUM)
    torch.testing.assert_close(policy.step_log_prob(obs, torch.zeros_like(x), x, I0), joint)


def test_log_prob_of_the_mean_is_not_clamped() -> None:
    """At std .01 a number's log-density is 3.686 at the mean: the published clamp at 2 would stop its gradient."""
    policy = gaussian(net=GaussianMLPConfig(hidden=(32, 32, 32), initial_std=0.01))
    obs = make_obs()
    mean = policy.step_moments(obs, torch.zeros(5, 4, 2), I0).mean.detach()
    log_prob = policy.step_log_prob(obs, torch.zeros_like(mean), mean, I0)
    torch.testing.assert_close(log_prob, torch.full((5,), -math.log(0.01) - 0.5 * math.log(2 * math.pi)))


def test_chain_holds_a_zero_latent_the_action_and_the_moments_it_was_drawn_from() -> None:
    policy, obs = gaussian(), make_obs()
    chunk, chain = policy.sample_chain(obs, generator=rng())
    assert chain.latents.shape == (5, 2, 4, 2)
    assert chain.latents[:, 0].abs().max() == 0.0
    torch.testing.assert_close(policy.normalizer.invert("action", chain.latents[:, 1]), chunk)
    assert chain.means is not None
    assert chain.stds is not None
    moments = policy.step_moments(obs, chain.latents[:, 0], I0)
    assert torch.equal(chain.means[:, 0], moments.mean)
    assert torch.equal(chain.stds[:, 0].expand(-1, 4, -1), moments.std)
    assert torch.equal(chain.log_probs, policy.replay(obs, chain.latents))  # bit for bit


def test_ratio_is_1_and_the_gradient_is_not_0_before_the_first_update() -> None:
    policy, obs = gaussian(), make_obs()
    _, chain = policy.sample_chain(obs, generator=rng())
    adv = torch.tensor([1.0, -1.0, 2.0, -2.0, 0.5])
    log_ratio = policy.step_log_prob(obs, chain.latents[:, 0], chain.latents[:, 1], I0) - chain.log_probs[:, 0]
    ratio = log_ratio.exp()
    torch.maximum(-adv * ratio, -adv * ratio.clamp(0.99, 1.01)).mean().backward()
    assert torch.equal(ratio, torch.ones(5))
    assert all(p.grad is not None and p.grad.abs().max() > 0 for p in policy.trainable())
    assert policy.frozen_net is not None
    assert all(p.grad is None for p in policy.frozen_net.parameters())


def test_draws_are_clipped_and_acting_without_noise_gives_the_mean() -> None:
    policy = gaussian(OneStepConfig(ft_steps=1, randn_clip=0.5))
    obs = make_obs(2000)
    _, chain = policy.sample_chain(obs, generator=rng())
    assert chain.means is not None
    z = (chain.latents[:, 1] - chain.means[:, 0]) / 0.1
    assert z.abs().max().item() == pytest.approx(0.5, abs=1e-5)
    mean = policy.normalizer.invert("action", chain.means[:, 0])
    torch.testing.assert_close(policy.act(obs), mean)
    assert not torch.allclose(policy.act(obs, deterministic=False, generator=rng()), mean)


def test_squashed_means_stay_in_the_unit_box_and_others_need_not() -> None:
    obs = {key: 1e3 * value for key, value in make_obs().items()}
    assert gaussian().step_moments(obs, torch.zeros(5, 4, 2), I0).mean.abs().max() <= 1.0
    free = gaussian(OneStepConfig(ft_steps=1, squash=False))
    assert free.step_moments(obs, torch.zeros(5, 4, 2), I0).mean.abs().max() > 1.0


def test_std_is_bounded_and_can_come_back_from_beyond_a_bound() -> None:
    log_var = torch.tensor([-20.0, math.log(0.01), 5.0], requires_grad=True)
    std = bounded_std(log_var, NET)
    torch.testing.assert_close(std, torch.tensor([0.01, 0.1, 0.2]))
    std.sum().backward()  # descent would lower all three
    assert log_var.grad is not None
    torch.testing.assert_close(log_var.grad, torch.tensor([0.0, 0.05, 0.1]))
    log_var.grad = None
    (-bounded_std(log_var, NET).sum()).backward()  # descent would raise all three
    assert log_var.grad is not None
    torch.testing.assert_close(log_var.grad, torch.tensor([-0.005, -0.05, 0.0]))


def test_cloning_leaves_the_std_alone_and_lowers_the_loss() -> None:
    policy = gaussian(OneStepConfig())
    obs = make_obs(64)
    action = policy.normalizer.invert("action", 0.5 * obs["state"][:, :, :2].tanh().expand(-1, 4, -1))
    bc = BC(policy, BCConfig(lr=3e-3, warmup_steps=0, steps=150))
    losses = [float(bc.update(obs, action, None).loss) for _ in range(150)]
    # With the mean learnt exactly the loss would be log(.1) + log(2 pi) / 2.
    assert losses[-1] < math.log(0.1) + 0.5 * math.log(2 * math.pi) + 0.3 < losses[0] - 1.0
    torch.testing.assert_close(policy.net.std(), torch.full((2,), 0.1))


def test_cloning_loss_ignores_padding() -> None:
    policy, obs = gaussian(OneStepConfig()), make_obs()
    action = torch.rand(5, 4, 2, generator=rng())
    pad = torch.tensor([[False, False, True, True]] * 5)
    wrong = action.clone()
    wrong[:, 2:] = 100.0
    torch.testing.assert_close(policy.bc_loss(obs, wrong, None, pad), policy.bc_loss(obs, action, None, pad))
    assert policy.bc_loss(obs, wrong, None) > policy.bc_loss(obs, action, None) + 1.0


def test_from_scratch_it_starts_wide_and_near_the_middle() -> None:
    policy, obs = gaussian(OneStepConfig(ft_steps=1, squash=False, reduce=Reduce.SUM), SCRATCH), make_obs()
    mean, std = policy.step_moments(obs, torch.zeros(5, 4, 2), I0)
    assert mean.abs().max() < 0.05
    assert torch.equal(std, torch.ones(5, 4, 2))


def test_before_finetuning_the_chain_holds_the_action_alone() -> None:
    policy, obs = gaussian(OneStepConfig()), make_obs()
    _, chain = policy.sample_chain(obs, generator=rng())
    assert policy.ft_steps == 0
    assert chain.latents.shape == (5, 1, 4, 2)
    assert chain.log_probs.shape == (5, 0)
    assert chain.means is None
    assert policy.replay(obs, chain.latents).shape == (5, 0)
    policy.begin_finetuning()
    policy.begin_finetuning(1)
    assert policy.ft_steps == 1
    with pytest.raises(ShapeError, match="expected"):
        policy.replay(obs, chain.latents)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: OneStepConfig(ft_steps=2),
        lambda: OneStepConfig(randn_clip=0.0),
        lambda: GaussianMLPConfig(initial_std=0.3),
        lambda: GaussianMLPConfig(hidden=()),
        lambda: GaussianMLPConfig(hidden=(), residual=False),
        lambda: GaussianMLPConfig(num_modes=0),
        lambda: gaussian().begin_finetuning(0),
        lambda: gaussian().begin_finetuning(1, kernel=object()),
        lambda: gaussian(spec=replace(SPEC, horizon=5)).__class__(
            SPEC, gaussian(spec=replace(SPEC, horizon=5)).net, normalizer()
        ),
    ],
)
def test_wrong_settings_are_refused(wrong) -> None:
    with pytest.raises(ConfigError):
        wrong()
