"""DPPO on real diffusion policies: against the published algorithm, and the edge cases of K'."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from benchmarks.dppo_reference import PublishedDPPO, Rollout, flat_settings
from robopo.algos.dppo import Clip, PerStep, dppo
from robopo.algos.gae_advantage import GAE
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import CriticBatches, PolicyGradientConfig
from robopo.critics.value import ValueNet
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy, ChunkPolicyConfig, Reduce
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.base import DiffusionConfig, ProcessKind
from robopo.rollout.collector import Collector
from robopo.train.metrics import to_scalars
from robopo.types import RolloutBatch
from tests.helpers.point_mass import PointMass

DDPM = DiffusionConfig(num_train_steps=5)
DDIM = DiffusionConfig(kind=ProcessKind.DDIM, num_train_steps=10, num_steps=5)
WHOLE = PolicyGradientConfig(
    batch_size=10_000,
    epochs=1,
    critic_warmup_iterations=0,
    critic_batches=CriticBatches.PAIRS,
    scale_rewards=False,
    adv_quantile_low=0.05,
    adv_quantile_high=0.9,
)


def make_policy(ft_steps: int, process: DiffusionConfig = DDPM, config: ChunkPolicyConfig | None = None) -> ChunkPolicy:
    torch.manual_seed(0)
    spec = PolicySpec(
        obs={"state": 2, "environment_state": 2},
        action_dim=2,
        action_names=("vx", "vy"),
        horizon=3,
        action_steps=2,
        control_hz=10.0,
        action_mode="velocity",
        task="point_mass",
    )
    bounds = {"state": 1.0, "environment_state": 0.8, "action": 1.0}
    normalizer = MinMaxNormalizer({key: (-torch.full((2,), b), torch.full((2,), b)) for key, b in bounds.items()})
    policy = build_chunk_policy(
        spec,
        DiffusionMLPConfig(hidden=(32, 32, 32), time_dim=8),
        process,
        config or ChunkPolicyConfig(),
        normalizer,
    )
    policy.begin_finetuning(ft_steps)
    return policy


def make(policy: ChunkPolicy, config: PolicyGradientConfig) -> tuple[PolicyGradient, RolloutBatch]:
    torch.manual_seed(1)
    critic = ValueNet(policy.spec.obs, policy.spec.obs_steps, (16, 16, 16), policy.normalizer)
    sim = PointMass(6, max_episode_steps=7, radius=0.75, terminate_on_success=False)
    batch = Collector(sim, policy).collect(8, torch.Generator().manual_seed(0))
    return dppo(policy, critic, config), batch


def update(algo: PolicyGradient, batch: RolloutBatch):
    return algo.update(batch, generator=torch.Generator().manual_seed(0))


def digest(module: nn.Module | None) -> list[Tensor]:
    assert module is not None
    return [p.detach().clone() for p in module.parameters()]


def same(left: list[Tensor], right: list[Tensor]) -> bool:
    return all(a.equal(b) for a, b in zip(left, right, strict=True))


def test_one_minibatch_equals_the_published_algorithm() -> None:
    policy = make_policy(3)
    algo, batch = make(policy, WHOLE)
    with torch.no_grad():
        for parameter in policy.net.parameters():  # away from ratio 1, so that clipping matters
            parameter.add_(0.01)

    def encoded(obs: dict[str, Tensor]) -> Tensor:
        return policy.encode({key: value.flatten(0, 1) for key, value in obs.items()}).view(8, 6, -1)

    sizes = {"levels": 5, "ft_steps": 3, "action_steps": 2, "std_floor": 0.1, "denoised_clip": 1.0}
    reference = PublishedDPPO(
        policy.net, policy.frozen_net, algo.critic.net, flat_settings(WHOLE, GAE(), PerStep(), Clip()), **sizes
    )
    cond, chain = encoded(batch.obs), batch.latents
    flags = {name: getattr(batch, name).float().numpy() for name in ("reward", "terminated", "truncated")}
    _, advantage, returns = reference.targets(Rollout(cond, encoded(batch.next_obs), chain, **flags))
    d, i = torch.unravel_index(torch.arange(48 * 3), (48, 3))
    cond, chain, old = cond.flatten(0, 1), chain.flatten(0, 1), batch.log_probs.flatten(0, 1)
    actor, critic, kl, clip_frac = reference.loss(
        cond[d], chain[d, i], chain[d, i + 1], i, returns[d], advantage[d], old[d, i]
    )
    metrics = update(algo, batch)
    assert metrics.actor_loss == pytest.approx(actor.item(), rel=1e-4, abs=1e-6)
    assert metrics.value_loss == pytest.approx(critic.item(), rel=1e-4)
    assert metrics.approx_kl == pytest.approx(kl, rel=1e-3)
    assert metrics.clip_frac == pytest.approx(clip_frac, abs=1e-6)
    assert clip_frac > 0.1


@pytest.mark.parametrize("process", [DDPM, DDIM])
@pytest.mark.parametrize("reduce", list(Reduce))
def test_a_fresh_batch_has_ratio_one_and_a_gradient(process: DiffusionConfig, reduce: Reduce) -> None:
    algo, batch = make(make_policy(3, process, ChunkPolicyConfig(reduce=reduce)), WHOLE)
    metrics = update(algo, batch)
    assert metrics.ratio_mean == pytest.approx(1.0, abs=1e-5)
    assert metrics.approx_kl_joint < 1e-6
    assert metrics.clip_frac == 0.0
    assert metrics.actor_grad_norm > 1e-4


def test_published_clamps_touch_no_fresh_sample() -> None:
    """At std .1 a draw within 3 sigma scores between -3.12 and 1.38, inside [-5, 2]: no pair loses its gradient."""
    batches = [
        make(make_policy(3, config=ChunkPolicyConfig(compat_published=compat)), WHOLE)[1] for compat in (True, False)
    ]
    assert batches[0].log_probs.equal(batches[1].log_probs)


def test_all_steps_fine_tuned_never_asks_the_frozen_network() -> None:
    policy = make_policy(5)
    calls: list[int] = []
    assert policy.frozen_net is not None
    policy.frozen_net.register_forward_hook(lambda *_: calls.append(1))
    algo, batch = make(policy, WHOLE)
    update(algo, batch)
    assert not calls
    assert batch.latents.shape[2] == 6


@pytest.mark.parametrize("ft_steps", [0, 1, 3, 5])
def test_what_learns(ft_steps: int) -> None:
    policy = make_policy(ft_steps)
    algo, batch = make(policy, WHOLE)
    obs = {key: value[0] for key, value in batch.obs.items()}

    def act() -> Tensor:
        return policy.act(obs, generator=torch.Generator().manual_seed(0))

    net, frozen, action = digest(policy.net), digest(policy.frozen_net), act()
    metrics = update(algo, batch)
    assert same(frozen, digest(policy.frozen_net))
    assert same(net, digest(policy.net)) == (ft_steps == 0)
    assert act().equal(action) == (ft_steps == 0)
    assert all(math.isfinite(value) for value in to_scalars(metrics).values())


def test_bc_term_scores_chains_of_the_pre_trained_policy() -> None:
    """Before any update the base policy is the policy: its chains score like the batch's own."""
    config = PolicyGradientConfig(batch_size=10_000, epochs=1, critic_warmup_iterations=0, bc_coef=0.1)
    algo, batch = make(make_policy(3), config)
    metrics = update(algo, batch)
    assert metrics.regularisers["bc"] == pytest.approx(-batch.log_probs.mean().item(), abs=0.1)
