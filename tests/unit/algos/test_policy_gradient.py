"""What the whole family shares: units, early stops, diagnostics, resume, and choices that don't fit together."""

from __future__ import annotations

import dataclasses
import math
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from robopo.algos.choices import RatioBatch, Samples
from robopo.algos.dppo import Clip, PerStep, dppo
from robopo.algos.flow_dppo import DivergenceMask
from robopo.algos.gae_advantage import GAE
from robopo.algos.gaussian_steps import step_rank
from robopo.algos.optimizers import AdamRMSInterp
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import NormAdv, PolicyGradientConfig, PolicyGradientMetrics
from robopo.critics.value import ValueNet
from robopo.errors import ConfigError, NonFiniteError
from robopo.losses.gae import gae
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.rollout.collector import Collector
from robopo.train.metrics import to_scalars
from robopo.types import RolloutBatch
from tests.helpers.fake_policy import FakePolicy
from tests.helpers.point_mass import PointMass

CONFIG = PolicyGradientConfig(batch_size=60, epochs=2, critic_warmup_iterations=0, scale_rewards=False)
WHOLE = dataclasses.replace(CONFIG, batch_size=10_000, epochs=1, norm_adv=NormAdv.NONE)


def make(
    config: PolicyGradientConfig = CONFIG, *, policy: FakePolicy | None = None, **choices: Any
) -> tuple[PolicyGradient, Collector]:
    policy = policy or FakePolicy(3)
    torch.manual_seed(1)
    critic = ValueNet(policy.spec.obs, 1, (16, 16, 16))
    sim = PointMass(8, max_episode_steps=6, radius=0.75, terminate_on_success=False)
    return dppo(policy, critic, config, **choices), Collector(sim, policy)


def rollout(collector: Collector, seed: int = 0) -> RolloutBatch:
    return collector.collect(10, torch.Generator().manual_seed(seed))


def update(algo: PolicyGradient, batch: RolloutBatch, seed: int = 0) -> PolicyGradientMetrics:
    return algo.update(batch, generator=torch.Generator().manual_seed(seed))


def weights(algo: PolicyGradient) -> list[Tensor]:
    return [p.detach().clone() for p in (*algo.policy.trainable(), *algo.critic.parameters())]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(a.equal(b) for a, b in zip(left, right, strict=True))


def reinforce(algo: PolicyGradient, batch: RolloutBatch, chosen: Tensor) -> tuple[Tensor, ...]:
    """Gradient of -mean(A gamma_denoise^(K'-1-i) log p) over the chosen pairs [N, K'], from the losses alone."""
    shape, policy = batch.reward.shape, algo.policy
    obs = {key: value.flatten(0, 1) for key, value in batch.obs.items()}
    next_obs = {key: value.flatten(0, 1) for key, value in batch.next_obs.items()}
    with torch.no_grad():
        value, next_value = algo.critic(obs).view(shape), algo.critic(next_obs).view(shape)
    ends = {"terminated": batch.terminated, "truncated": batch.truncated}
    adv = gae(reward=batch.reward, value=value, next_value=next_value, gamma=0.999, lam=0.95, **ends).advantage
    latents, K = batch.latents.flatten(0, 1), batch.log_probs.shape[-1]
    terms = []
    for n, i in chosen.nonzero().tolist():
        row = {key: value[n : n + 1] for key, value in obs.items()}
        logp = policy.step_log_prob(row, latents[n : n + 1, i], latents[n : n + 1, i + 1], torch.tensor([i]))
        terms.append(-adv.flatten()[n] * 0.99 ** (K - 1 - i) * logp[0])
    return torch.autograd.grad(torch.stack(terms).mean(), policy.trainable())


@pytest.mark.parametrize("reduce", list(Reduce))
@pytest.mark.parametrize("case", ["all", "inactive", "unused"])
@pytest.mark.parametrize("region", [Clip(), DivergenceMask(dual_clip=None)])
def test_the_first_gradient_is_reinforce_over_active_steps_and_used_decisions(
    reduce: Reduce, case: str, region: Any
) -> None:
    policy = FakePolicy(3, inactive=(1,) if case == "inactive" else ())
    policy.config = ChunkPolicyConfig(reduce=reduce)
    algo, collector = make(WHOLE, policy=policy, trust_region=region)
    batch = rollout(collector)
    chosen = torch.ones(80, 3, dtype=torch.bool)
    if case == "inactive":
        chosen[:, 1] = False
    if case == "unused":
        use = torch.rand(10, 8, generator=torch.Generator().manual_seed(1)) < 0.5
        chosen &= use.flatten()[:, None]
        batch = dataclasses.replace(batch, extras={"use": use})
    expected = reinforce(algo, batch, chosen)
    metrics = update(algo, batch)
    for parameter, gradient in zip(algo.policy.trainable(), expected, strict=True):
        torch.testing.assert_close(parameter.grad, gradient, atol=1e-6, rtol=1e-4)
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-6)
    assert metrics.blocked_positive == metrics.blocked_negative == 0.0


@pytest.mark.parametrize("divergence", [False, True])
def test_an_inactive_step_contributes_nothing(divergence: bool) -> None:
    """Whatever its latents, moments and log-probs hold."""
    found = []
    for junk in (0.0, 3.0):
        algo, collector = make(policy=FakePolicy(3, inactive=(0,)), ratio=PerStep(divergence=divergence))
        batch = rollout(collector)
        assert batch.means is not None
        means, log_probs, latents = batch.means.clone(), batch.log_probs.clone(), batch.latents.clone()
        means[:, :, 0] += junk
        log_probs[:, :, 0] += junk
        latents[:, :, 0] += junk  # the input of step 0 alone
        update(algo, dataclasses.replace(batch, means=means, log_probs=log_probs, latents=latents))
        found.append(weights(algo))
    assert same(*found)


def test_unused_decisions_teach_neither_actor_nor_critic() -> None:
    """Nor are they in the log: what an environment that waits is worth says nothing about the policy."""
    found, logged = [], []
    for junk in (0.0, 3.0):
        config = dataclasses.replace(CONFIG, norm_adv=NormAdv.ROLLOUT)
        algo, collector = make(config, advantage=GAE(gamma=0.0))
        batch = rollout(collector)
        use = torch.ones(10, 8, dtype=torch.bool)
        use[::2] = False
        reward = torch.where(use, batch.reward, junk)
        m = update(algo, dataclasses.replace(batch, reward=reward, extras={"use": use}))
        found.append(weights(algo))
        logged.append((m.explained_variance, m.value_mean, m.return_mean, m.advantage_std))
    assert same(*found)
    assert logged[0] == logged[1]
    assert logged[0][2] == pytest.approx(batch.reward[use].mean().item(), abs=1e-6)


def test_nothing_to_learn_from_leaves_both_networks_alone() -> None:
    algo, collector = make()
    before = weights(algo)
    batch = dataclasses.replace(rollout(collector), extras={"use": torch.zeros(10, 8, dtype=torch.bool)})
    metrics = update(algo, batch)
    assert same(before, weights(algo))
    assert all(math.isfinite(value) for value in to_scalars(metrics).values())


def test_with_moments_the_update_is_the_same_up_to_rounding() -> None:
    """PerStep with and without its KL: one compares moments, the other log-probabilities."""
    found = []
    for divergence in (False, True):
        algo, collector = make(ratio=PerStep(divergence=divergence))
        metrics = update(algo, rollout(collector))
        found.append(weights(algo))
        assert (metrics.chain_kl is None) != divergence
        assert len(metrics.kl_per_step) == (3 if divergence else 0)
    for plain, other in zip(*found, strict=True):
        torch.testing.assert_close(plain, other, atol=2e-5, rtol=0)


@pytest.mark.parametrize("reduce", list(Reduce))
def test_the_kl_of_a_shifted_policy_by_hand(reduce: Reduce) -> None:
    """All means move by 0.01 at std 0.1: KL = 0.005 per number, 4 numbers, 3 steps."""
    policy = FakePolicy(3)
    policy.config = ChunkPolicyConfig(reduce=reduce)
    algo, collector = make(WHOLE, policy=policy, ratio=PerStep(divergence=True))
    batch = rollout(collector)
    with torch.no_grad():
        policy.net[2].bias.add_(0.01)
    metrics = update(algo, batch)
    per_step = 0.005 * (4 if reduce is Reduce.SUM else 1)
    assert metrics.kl_per_step == pytest.approx((per_step,) * 3, rel=1e-4)
    assert metrics.chain_kl == pytest.approx(3 * per_step, rel=1e-4)
    assert metrics.std_mean == pytest.approx(0.1)
    assert metrics.ratio_q01 < metrics.ratio_q50 < metrics.ratio_q99


def test_max_chain_kl_stops_the_epochs() -> None:
    config = dataclasses.replace(CONFIG, epochs=6, actor_lr=1e-2, max_chain_kl=0.01)
    algo, collector = make(config)
    metrics = update(algo, rollout(collector))
    assert metrics.epochs < 6
    assert metrics.chain_kl is not None
    # the limit is on the last minibatch, the KL of the steps is the mean of all
    assert sum(metrics.kl_per_step) < metrics.chain_kl
    assert metrics.chain_kl > 0.01
    algo, collector = make(dataclasses.replace(config, max_chain_kl=1e6))
    assert update(algo, rollout(collector)).epochs == 6


def test_blocked_shares_are_split_by_the_sign_of_the_advantage() -> None:
    """Ratios of about e^0.1 everywhere and clip 0.01: all values with A > 0 are blocked, none with A < 0."""
    algo, collector = make(WHOLE, trust_region=Clip(base=0.01, coef=0.01))
    batch = rollout(collector)
    metrics = update(algo, dataclasses.replace(batch, log_probs=batch.log_probs - 0.1))
    assert (metrics.blocked_positive, metrics.blocked_negative, metrics.clip_frac) == (1.0, 0.0, 1.0)
    assert metrics.ratio_q50 == pytest.approx(math.exp(0.1), rel=1e-4)


def test_normalising_over_the_rollout_equals_one_minibatch_of_decisions() -> None:
    """With one denoising step and one minibatch both standardise over the same numbers."""
    found = []
    for kind in (NormAdv.MINIBATCH, NormAdv.ROLLOUT):
        algo, collector = make(dataclasses.replace(WHOLE, norm_adv=kind), policy=FakePolicy(1))
        found.append((update(algo, rollout(collector)), weights(algo)))
    assert found[0][0].actor_loss == pytest.approx(found[1][0].actor_loss, abs=1e-6)
    for left, right in zip(found[0][1], found[1][1], strict=True):
        torch.testing.assert_close(left, right, atol=1e-5, rtol=0)


def test_without_value_loss_the_critic_rests() -> None:
    algo, collector = make(dataclasses.replace(CONFIG, vf_coef=0.0))
    before = [p.detach().clone() for p in algo.critic.parameters()]
    metrics = update(algo, rollout(collector))
    assert same(before, [p.detach() for p in algo.critic.parameters()])
    assert metrics.value_loss == 0.0


def test_resume_is_exact_with_a_kl_every_regulariser_and_another_optimiser() -> None:
    config = dataclasses.replace(
        CONFIG, max_chain_kl=1.0, kl_coef=0.1, bc_coef=0.1, entropy_coef=0.01, scale_rewards=True
    )

    def start() -> tuple[PolicyGradient, Collector]:
        region, optimizer = DivergenceMask(delta_chain=1e-4), AdamRMSInterp()
        return make(config, policy=FakePolicy(3, learned_noise=True), trust_region=region, optimizer=optimizer)

    straight, collector = start()
    for seed in range(4):
        expected = update(straight, rollout(collector, seed), seed)
    assert expected.blocked_positive > 0.0
    first, collector = start()
    for seed in range(2):
        update(first, rollout(collector, seed), seed)
    second, resumed = start()
    net: Any = second.policy
    net.load_state_dict(first.policy.state_dict())  # type: ignore[attr-defined]
    second.critic.load_state_dict(first.critic.state_dict())
    second.load_state_dict(first.state_dict())
    resumed.load_state_dict(collector.state_dict())
    for seed in range(2, 4):
        found = update(second, rollout(resumed, seed), seed)
    assert found == expected
    assert same(weights(straight), weights(second))


def test_a_policy_without_moments_takes_what_needs_log_probs_alone() -> None:
    algo, collector = make(policy=FakePolicy(3, has_moments=False))
    metrics = update(algo, rollout(collector))
    assert metrics.actor_grad_norm > 0.0
    assert (metrics.std_mean, metrics.chain_kl) == (None, None)


@pytest.mark.parametrize(
    ("choices", "changes"),
    [
        ({"trust_region": DivergenceMask()}, {}),
        ({}, {"max_chain_kl": 0.1}),
        ({"ratio": PerStep(divergence=True)}, {}),
        ({}, {"kl_coef": 0.1}),
    ],
)
def test_no_kl_without_moments(choices: dict[str, Any], changes: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="Gaussian"):
        make(dataclasses.replace(CONFIG, **changes), policy=FakePolicy(3, has_moments=False), **choices)


class NoKL(PerStep):
    """A ratio that never has a KL."""

    divergence = None  # type: ignore[assignment]

    def __init__(self) -> None:
        object.__setattr__(self, "gamma_denoise", 0.99)

    def evaluate(self, policy: Any, data: Samples, unit: Tensor) -> RatioBatch:
        return PerStep().evaluate(policy, data, unit)


def test_a_ratio_without_kl_and_a_region_that_needs_it_are_both_named() -> None:
    algo, collector = make(trust_region=DivergenceMask(), ratio=NoKL())
    with pytest.raises(ConfigError, match=r"DivergenceMask.*NoKL"):
        update(algo, rollout(collector))


def test_a_broken_noise_parameter_is_named() -> None:
    policy = FakePolicy(3, learned_noise=True)
    algo, collector = make(policy=policy)
    batch = rollout(collector)
    assert policy.noise_net is not None
    with torch.no_grad():
        policy.noise_net[0][0, 0, 0] = float("nan")
    with pytest.raises(NonFiniteError, match="actor's other parameter 0"):
        update(algo, batch)


@pytest.mark.parametrize("num_steps", [0, 1, 4])
def test_units_that_are_no_steps_get_the_last_width(num_steps: int) -> None:
    """Also of a flow that acts without noise: no step of it is active."""
    batch = RatioBatch(torch.tensor([[0.5]]), None)
    out = Clip(base=0.001, coef=0.1).surrogate(batch, torch.ones(1, 1), num_steps=num_steps)
    torch.testing.assert_close(out.loss, torch.tensor([[-1.1]]))


def test_the_clip_ramp_counts_active_steps_only() -> None:
    """Steps 1 and 2 of four are active: the noisier of them gets ``base``, the other ``coef``."""
    active = torch.tensor([[False, True, True, False], [False, False, True, False]])
    data = SimpleNamespace(active=active)
    decision, i = torch.tensor([0, 0, 1]), torch.tensor([1, 2, 2])
    rank = step_rank(data, decision, i)
    assert rank.tolist() == [0, 1, 0]
    ratio = RatioBatch(torch.full((3, 1), 0.05), None, step=i, rank=rank)
    region = Clip(base=0.01, coef=0.1).surrogate(ratio, torch.ones(3, 1), num_steps=2)
    assert region.blocked.flatten().tolist() == [True, False, True]  # |r - 1| = 0.051
