"""DPPO on a small policy: the identities of the paper's algorithm, edge cases, resume, and NaN."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from benchmarks.dppo_reference import flat_settings
from robopo.algos.dppo import Clip, PerStep, dppo
from robopo.algos.gae_advantage import GAE
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import (
    CriticBatches,
    NormAdv,
    PolicyGradientConfig,
    PolicyGradientMetrics,
)
from robopo.critics.value import ValueNet
from robopo.errors import ConfigError, NonFiniteError, ShapeError
from robopo.losses.gae import gae
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.rollout.collector import Collector
from robopo.train.metrics import to_scalars
from robopo.types import RolloutBatch
from tests.helpers.fake_policy import FakePolicy
from tests.helpers.point_mass import PointMass
from tests.unit.algos.dppo_reference import reference_losses

CONFIG = PolicyGradientConfig(batch_size=60, epochs=2, critic_warmup_iterations=0, scale_rewards=False)


def make(
    config: PolicyGradientConfig = CONFIG, *, ft_steps: int = 3, gamma: float = 0.999
) -> tuple[PolicyGradient, Collector]:
    policy = FakePolicy(ft_steps)
    torch.manual_seed(1)
    critic = ValueNet(policy.spec.obs, 1, (16, 16, 16))
    # every step pays, more so than a sparse success: advantages are never all equal
    sim = PointMass(8, max_episode_steps=6, radius=0.75, terminate_on_success=False)
    return dppo(policy, critic, config, advantage=GAE(gamma=gamma)), Collector(sim, policy)


def step(algo: PolicyGradient, collector: Collector, seed: int = 0) -> PolicyGradientMetrics:
    generator = torch.Generator().manual_seed(seed)
    return algo.update(collector.collect(10, generator), generator=generator)


def weights(module: nn.Module) -> list[Tensor]:
    return [p.detach().clone() for p in module.parameters()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(a.equal(b) for a, b in zip(left, right, strict=True))


def targets(algo: PolicyGradient, batch: RolloutBatch) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Flat observations, advantages and returns, from the losses alone."""
    shape = batch.reward.shape
    obs = {key: value.flatten(0, 1) for key, value in batch.obs.items()}
    next_obs = {key: value.flatten(0, 1) for key, value in batch.next_obs.items()}
    with torch.no_grad():
        out = gae(
            reward=batch.reward,
            value=algo.critic(obs).view(shape),
            next_value=algo.critic(next_obs).view(shape),
            terminated=batch.terminated,
            truncated=batch.truncated,
            gamma=0.999,
            lam=0.95,
        )
    return obs, out.advantage.flatten(), out.returns.flatten()


@pytest.mark.parametrize("ft_steps", [1, 3])
@pytest.mark.parametrize("quantiles", [(0.0, 1.0), (0.1, 0.8)])
def test_losses_equal_the_reference(ft_steps: int, quantiles: tuple[float, float]) -> None:
    """One minibatch of everything, ratios away from 1, against a per-sample loop."""
    config = dataclasses.replace(
        CONFIG,
        batch_size=10_000,
        epochs=1,
        critic_batches=CriticBatches.PAIRS,
        adv_quantile_low=quantiles[0],
        adv_quantile_high=quantiles[1],
    )
    algo, collector = make(config, ft_steps=ft_steps)
    batch = collector.collect(10, torch.Generator().manual_seed(0))
    with torch.no_grad():
        for parameter in algo.policy.net.parameters():
            parameter.add_(0.01)
    obs, advantage, returns = targets(algo, batch)
    actor, critic = reference_losses(
        algo.policy,
        algo.critic,
        obs,
        batch.latents.flatten(0, 1),
        batch.log_probs.flatten(0, 1),
        advantage,
        returns,
        list(range(80 * ft_steps)),
        flat_settings(config, GAE(), PerStep(), Clip()),
    )
    metrics = algo.update(batch, generator=torch.Generator().manual_seed(0))
    assert metrics.actor_loss == pytest.approx(actor.item(), rel=1e-4, abs=1e-6)
    assert metrics.value_loss == pytest.approx(critic.item(), rel=1e-5)
    assert metrics.clip_frac > 0.1


def test_before_the_first_step_the_ratio_is_one() -> None:
    config = dataclasses.replace(CONFIG, batch_size=10_000, epochs=1, norm_adv=NormAdv.NONE)
    algo, collector = make(config)
    batch = collector.collect(10, torch.Generator().manual_seed(0))
    _, advantage, _ = targets(algo, batch)
    metrics = algo.update(batch, generator=torch.Generator().manual_seed(0))
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-6)
    assert metrics.approx_kl == pytest.approx(0.0, abs=1e-7)
    assert metrics.clip_frac == 0.0
    assert max(metrics.ratio_deviation) < 1e-5
    discounted = advantage[:, None] * torch.tensor([0.99**2, 0.99, 1.0])
    assert metrics.actor_loss == pytest.approx(-discounted.mean().item(), rel=1e-4)
    assert metrics.actor_grad_norm > 0.0  # the first gradient is never zero


def test_first_gradient_is_the_discounted_policy_gradient() -> None:
    config = dataclasses.replace(CONFIG, batch_size=10_000, epochs=1, norm_adv=NormAdv.NONE)
    algo, collector = make(config)
    policy: Any = algo.policy
    batch = collector.collect(10, torch.Generator().manual_seed(0))
    obs, advantage, _ = targets(algo, batch)
    logp = policy.replay(obs, batch.latents.flatten(0, 1))  # [N, K']
    surrogate = -(advantage[:, None] * torch.tensor([0.99**2, 0.99, 1.0]) * logp).mean()
    expected = torch.autograd.grad(surrogate, list(policy.net.parameters()))
    algo.update(batch, generator=torch.Generator().manual_seed(0))
    for parameter, gradient in zip(policy.net.parameters(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)


def test_shifting_the_advantages_changes_nothing_when_they_are_normalised() -> None:
    results = []
    for shift in (0.0, 5.0):
        algo, collector = make(dataclasses.replace(CONFIG, batch_size=10_000, epochs=1), gamma=0.0)
        batch = collector.collect(10, torch.Generator().manual_seed(0))
        batch = dataclasses.replace(batch, reward=batch.reward + shift)
        results.append(algo.update(batch, generator=torch.Generator().manual_seed(0)).actor_loss)
    assert results[0] == pytest.approx(results[1], abs=1e-5)


@pytest.mark.parametrize("ft_steps", [1, 3])
def test_only_the_fine_tuned_network_and_the_critic_learn(ft_steps: int) -> None:
    algo, collector = make(ft_steps=ft_steps)
    policy: Any = algo.policy
    frozen, net, critic = weights(policy.frozen_net), weights(policy.net), weights(algo.critic)
    metrics = step(algo, collector)
    assert same(frozen, weights(policy.frozen_net))
    assert not same(net, weights(policy.net))
    assert not same(critic, weights(algo.critic))
    assert all(math.isfinite(value) for value in to_scalars(metrics).values())
    assert len(metrics.ratio_deviation) == ft_steps


def test_no_fine_tuned_step_leaves_the_actor_alone() -> None:
    algo, collector = make(ft_steps=0)
    net, critic = weights(algo.policy.net), weights(algo.critic)
    metrics = step(algo, collector)
    assert same(net, weights(algo.policy.net))
    assert not algo.actor_optimizer.state
    assert not same(critic, weights(algo.critic))
    assert (metrics.actor_loss, metrics.actor_grad_norm, metrics.ratio_deviation) == (0.0, 0.0, ())


def test_critic_warm_up_and_learning_rates() -> None:
    config = dataclasses.replace(
        CONFIG, critic_warmup_iterations=2, actor_lr_min=1e-5, lr_warmup_iterations=2, lr_cycle_iterations=10
    )
    algo, collector = make(config)
    net = weights(algo.policy.net)
    rates = []
    for iteration in range(5):
        rates.append(step(algo, collector, iteration).actor_lr)
        assert same(net, weights(algo.policy.net)) == (iteration < 2)
    assert rates == pytest.approx([1e-5, 1e-5, 1e-5, 5.5e-5, 1e-4])
    assert algo.critic_optimizer.param_groups[0]["lr"] == config.critic_lr


def test_critic_batches_take_as_many_steps() -> None:
    counts = {}
    for kind in CriticBatches:
        algo, collector = make(dataclasses.replace(CONFIG, critic_batches=kind))
        step(algo, collector)
        state = next(iter(algo.critic_optimizer.state.values()))
        counts[kind] = int(state["step"])
        # 80 decisions, 3 steps each: 4 minibatches of 60 pairs, or of 20 decisions, in 2 epochs
        assert int(next(iter(algo.actor_optimizer.state.values()))["step"]) == 8
    assert counts == {CriticBatches.DECISIONS: 8, CriticBatches.PAIRS: 8}


def test_accumulation_equals_one_big_minibatch() -> None:
    networks = []
    for parts in (1, 4):
        algo, collector = make(dataclasses.replace(CONFIG, accumulate=parts, max_grad_norm=0.5))
        step(algo, collector)
        networks.append(weights(algo.policy.net))
    for whole, split in zip(*networks, strict=True):
        torch.testing.assert_close(whole, split, atol=1e-6, rtol=0)


def test_resume_is_exact() -> None:
    config = dataclasses.replace(CONFIG, scale_rewards=True, actor_lr_min=1e-5, lr_warmup_iterations=3)
    straight, collector = make(config)
    for seed in range(4):
        expected = step(straight, collector, seed)
    first, collector = make(config)
    for seed in range(2):
        step(first, collector, seed)
    second, resumed = make(config)
    second.policy.net.load_state_dict(first.policy.net.state_dict())
    second.critic.load_state_dict(first.critic.state_dict())
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(collector.state_dict())
    for seed in range(2, 4):
        found = step(second, resumed, seed)
    assert found == expected
    assert same(weights(straight.policy.net), weights(second.policy.net))
    assert same(weights(straight.critic), weights(second.critic))


def test_target_kl_stops_after_an_epoch() -> None:
    algo, collector = make(dataclasses.replace(CONFIG, epochs=5, target_kl=1e-12, actor_lr=1e-2))
    assert step(algo, collector).epochs == 1
    algo, collector = make(dataclasses.replace(CONFIG, epochs=5, target_kl=1e6))
    assert step(algo, collector).epochs == 5


def test_joint_and_per_dimension_kl() -> None:
    """Averaged over 4 elements: the joint log-ratio is 4 times as large, the joint KL about 16 times."""
    algo, collector = make(dataclasses.replace(CONFIG, actor_lr=1e-3))
    metrics = step(algo, collector)
    assert metrics.approx_kl == metrics.approx_kl_per_dim
    assert metrics.approx_kl_joint / metrics.approx_kl_per_dim == pytest.approx(16.0, rel=0.2)
    algo, collector = make(dataclasses.replace(CONFIG, actor_lr=1e-3))
    algo.policy.config = ChunkPolicyConfig(reduce=Reduce.SUM)
    again = dppo(algo.policy, algo.critic, algo.config)
    metrics = step(again, collector)
    assert metrics.approx_kl == metrics.approx_kl_joint


def test_bc_term_pulls_towards_the_pre_trained_policy() -> None:
    """Without reward the BC term alone moves the actor, back to the network it started from."""
    config = dataclasses.replace(CONFIG, bc_coef=100.0, epochs=20, actor_lr=3e-3)
    algo, collector = make(config)
    policy: Any = algo.policy
    with torch.no_grad():
        for parameter in policy.net.parameters():
            parameter.add_(0.02)

    def gap() -> float:
        obs = {key: torch.zeros(1, 1, 2) for key in policy.spec.obs}
        x, i = torch.zeros(1, 2, 2), torch.zeros(1, dtype=torch.long)
        moved = policy.mean(obs, x, i)
        policy.net, kept = policy.frozen_net, policy.net
        base = policy.mean(obs, x, i)
        policy.net = kept
        return (moved - base).abs().max().item()

    before, metrics = gap(), step(algo, collector)
    assert metrics.regularisers["bc"] != 0.0
    assert gap() < 0.5 * before


def test_no_frozen_network_no_bc_term() -> None:
    policy: Any = FakePolicy(2)
    policy.frozen_net = None
    with pytest.raises(ConfigError, match="begin_finetuning"):
        dppo(policy, nn.Linear(1, 1), dataclasses.replace(CONFIG, bc_coef=0.1))


def test_nan_is_named_and_never_reaches_the_weights() -> None:
    algo, collector = make()
    batch = collector.collect(10, torch.Generator().manual_seed(0))
    reward = batch.reward.clone()
    reward[3, 2] = float("nan")
    seen = []
    with pytest.raises(NonFiniteError, match=r"batch\.reward is NaN"):
        algo.update(
            dataclasses.replace(batch, reward=reward),
            generator=torch.Generator().manual_seed(0),
            on_nonfinite=lambda name, tensor: seen.append((name, tensor)),
        )
    assert [name for name, _ in seen] == ["batch.reward"]
    assert all(torch.isfinite(p).all() for p in weights(algo.policy.net) + weights(algo.critic))


def test_a_broken_weight_is_named() -> None:
    algo, collector = make()
    batch = collector.collect(10, torch.Generator().manual_seed(0))
    with torch.no_grad():
        next(algo.policy.net.parameters())[0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match=r"actor 0\.weight"):
        algo.update(batch, generator=torch.Generator().manual_seed(0))


def test_the_batch_is_left_alone() -> None:
    algo, collector = make(dataclasses.replace(CONFIG, scale_rewards=True))
    batch = collector.collect(10, torch.Generator().manual_seed(0))
    kept = {name: getattr(batch, name).clone() for name in ("latents", "log_probs", "reward", "first", "means", "stds")}
    algo.update(batch, generator=torch.Generator().manual_seed(0))
    assert all(getattr(batch, name).equal(value) for name, value in kept.items())


def test_a_batch_of_another_policy_is_refused() -> None:
    _, collector = make(ft_steps=2)
    algo, _ = make(ft_steps=3)
    with pytest.raises(ShapeError, match="2 denoising steps"):
        step(algo, collector)


@pytest.mark.parametrize(
    ("kind", "field", "value"),
    [
        (GAE, "gamma", 1.5),
        (GAE, "lam", -0.1),
        (PerStep, "gamma_denoise", 2.0),
        (Clip, "base", 0.0),
        (Clip, "coef", 1.0),
        (Clip, "rate", -1.0),
        (Clip, "ratio_cap", 1.0),
        (PolicyGradientConfig, "actor_lr", 0.0),
        (PolicyGradientConfig, "actor_lr_min", 1e-3),
        (PolicyGradientConfig, "critic_lr_min", 1.0),
        (PolicyGradientConfig, "epochs", 0),
        (PolicyGradientConfig, "batch_size", 0),
        (PolicyGradientConfig, "target_kl", 0.0),
        (PolicyGradientConfig, "max_chain_kl", 0.0),
        (PolicyGradientConfig, "adv_quantile_low", 1.0),
        (PolicyGradientConfig, "lr_warmup_iterations", 1000),
        (PolicyGradientConfig, "knn_coef", -1.0),
    ],
)
def test_ranges(kind: Any, field: str, value: float) -> None:
    with pytest.raises(ConfigError, match=f"{field}|adv_quantile"):
        kind(**{field: value})
