"""PODPO on a one-step flow: what it refuses, what moves the generator, resume, NaN, and a bandit it solves."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from robopo.algos.podpo import PODPO, PODPOConfig, PODPOMetrics
from robopo.critics.value import ValueNet
from robopo.errors import ConfigError, NonFiniteError, ShapeError
from robopo.losses.drift import DriftKernel
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.flow import FlowConfig
from robopo.rollout.collector import Collector
from robopo.types import RolloutBatch
from tests.helpers.point_mass import PointMass

SPEC = PolicySpec(
    obs={"environment_state": 2, "state": 2},
    action_dim=2,
    action_names=("vx", "vy"),
    horizon=3,
    action_steps=2,
    control_hz=10.0,
    action_mode="velocity",
)
CONFIG = PODPOConfig(experimental=True, batch_size=40, epochs=2, critic_warmup_iterations=0, actor_lr=1e-3)


def make_policy(num_steps: int = 1, spec: PolicySpec = SPEC) -> ChunkPolicy:
    torch.manual_seed(0)
    sizes = {**spec.obs, "action": spec.action_dim}
    bounds = {key: (-torch.ones(size), torch.ones(size)) for key, size in sizes.items()}
    net = DiffusionMLPConfig(hidden=(32, 32, 32))
    config = ChunkPolicyConfig()
    return build_chunk_policy(spec, net, FlowConfig(num_steps=num_steps), config, MinMaxNormalizer(bounds))


def make(config: PODPOConfig = CONFIG) -> tuple[PODPO, Collector]:
    policy = make_policy()
    critic = ValueNet(SPEC.obs, 1, (16, 16, 16))
    sim = PointMass(8, max_episode_steps=6, radius=0.75, terminate_on_success=False)
    return PODPO(policy, critic, config), Collector(sim, policy)


def step(algo: PODPO, collector: Collector, seed: int = 0) -> PODPOMetrics:
    generator = torch.Generator().manual_seed(seed)
    return algo.update(collector.collect(10, generator), generator=generator)


def weights(module: nn.Module) -> Tensor:
    return torch.cat([p.detach().flatten() for p in module.parameters()]).clone()


def fixed_batch(seed: int = 0, *, reward: float = -1.0) -> RolloutBatch:
    """Ten decisions in eight environments, each an episode of its own."""
    generator = torch.Generator().manual_seed(seed)
    obs = {key: torch.rand(10, 8, 1, 2, generator=generator) for key in SPEC.obs}
    done = torch.ones(10, 8, dtype=torch.bool)
    return RolloutBatch(
        obs=obs,
        next_obs=obs,
        latents=torch.randn(10, 8, 2, 3, 2, generator=generator),
        log_probs=torch.zeros(10, 8, 1),
        reward=torch.full((10, 8), reward),
        terminated=done,
        truncated=~done,
        first=done,
    )


def updated(batch: RolloutBatch, config: PODPOConfig = CONFIG) -> tuple[Tensor, PODPOMetrics, PODPO]:
    """Generator weights after one update, from a critic that says 0."""
    algo, _ = make(dataclasses.replace(config, scale_rewards=False))
    with torch.no_grad():
        for p in algo.critic.parameters():
            p.zero_()
    metrics = algo.update(batch, generator=torch.Generator().manual_seed(0))
    return weights(algo.policy.net), metrics, algo


def test_it_must_be_asked_for_and_says_what_is_not_known():
    with pytest.raises(ConfigError, match=r"weights, bandwidths and benchmark tables.*experimental=true"):
        make(PODPOConfig())


def test_a_policy_of_several_steps_is_refused():
    with pytest.raises(ConfigError, match=r"algo=podpo with policy.process.num_steps=4"):
        PODPO(make_policy(4), ValueNet(SPEC.obs, 1, (16, 16, 16)), CONFIG)


@pytest.mark.parametrize("ft_steps", [0, 1])
def test_after_fine_tuning_has_begun_the_step_must_learn(ft_steps):
    policy = make_policy()
    policy.begin_finetuning(ft_steps)
    critic = ValueNet(SPEC.obs, 1, (16, 16, 16))
    if ft_steps == 0:
        with pytest.raises(ConfigError, match=r"algo=podpo with finetune.ft_steps=0"):
            PODPO(policy, critic, CONFIG)
        return
    before = weights(policy.net)
    sim = PointMass(8, max_episode_steps=6, radius=0.75, terminate_on_success=False)
    step(PODPO(policy, critic, CONFIG), Collector(sim, policy))
    assert not torch.equal(weights(policy.net), before)


@pytest.mark.parametrize("kernel", list(DriftKernel))
def test_two_updates_are_finite_and_move_both_networks(kernel):
    algo, collector = make(dataclasses.replace(CONFIG, kernel=kernel))
    for n in range(2):
        before = weights(algo.policy.net), weights(algo.critic)
        metrics = step(algo, collector, n)
        assert all(math.isfinite(value) for value in metrics)
        assert metrics.iteration == n
        assert 0 < metrics.positives < 1
        assert metrics.drift_rms > 0
        assert metrics.neighbours >= 1
        assert not torch.equal(weights(algo.policy.net), before[0])
        assert not torch.equal(weights(algo.critic), before[1])


def test_the_critic_learns_first():
    algo, collector = make(dataclasses.replace(CONFIG, critic_warmup_iterations=1))
    before = weights(algo.policy.net)
    assert step(algo, collector).drift_loss == 0.0
    assert torch.equal(weights(algo.policy.net), before)
    assert step(algo, collector, 1).drift_loss > 0.0


def test_bad_chunks_alone_move_nothing():
    before = weights(make_policy().net)
    after, metrics, _ = updated(fixed_batch(reward=-1.0))
    assert (metrics.positives, metrics.drifting, metrics.drift_loss, metrics.actor_grad_norm) == (0.0, 0.0, 0.0, 0.0)
    assert torch.equal(after, before)


def test_only_used_decisions_and_executed_rows_of_the_last_latent_count():
    batch = fixed_batch(reward=1.0)
    reward = batch.reward.clone()
    reward[5:] = 3.0
    batch = dataclasses.replace(batch, reward=reward)
    expected, metrics, _ = updated(batch)
    assert metrics.positives == 1.0
    latents = batch.latents.clone()
    latents[:, :, 0] += 1.0
    latents[:, :, :, 2] += 1.0
    assert torch.equal(updated(dataclasses.replace(batch, latents=latents))[0], expected)
    latents[:, :, 1, 0] += 1.0
    assert not torch.equal(updated(dataclasses.replace(batch, latents=latents))[0], expected)
    use = torch.zeros(10, 8, dtype=torch.bool)
    use[:5] = True
    half, metrics, _ = updated(dataclasses.replace(batch, extras={"use": use}))
    assert metrics.positives == 0.5
    assert not torch.equal(half, expected)


def test_the_state_kernel_decides_who_is_a_neighbour():
    batch = fixed_batch(reward=1.0)  # all are positives of equal weight
    narrow, wide = (
        updated(batch, dataclasses.replace(CONFIG, state_bandwidth=width))[1].neighbours for width in (1e-3, 1e3)
    )
    assert narrow == pytest.approx(1.0, abs=1e-3)
    assert wide == pytest.approx(40.0, rel=1e-4)  # the minibatch


def test_resuming_continues_bit_for_bit():
    algo, collector = make()
    step(algo, collector, 0)
    other, _ = make()
    other.policy.load_state_dict(copy.deepcopy(algo.policy.state_dict()))
    other.critic.load_state_dict(copy.deepcopy(algo.critic.state_dict()))
    other.load_state_dict(copy.deepcopy(algo.state_dict()))
    batch = collector.collect(10, torch.Generator().manual_seed(1))
    left, right = (a.update(batch, generator=torch.Generator().manual_seed(2)) for a in (algo, other))
    assert left == right
    assert torch.equal(weights(algo.policy.net), weights(other.policy.net))
    assert torch.equal(weights(algo.critic), weights(other.critic))


@pytest.mark.parametrize(("entry", "name"), [("reward", "batch.reward"), ("latents", "batch.latents")])
def test_a_nan_is_named_and_changes_no_weight(entry, name):
    batch = fixed_batch(reward=1.0)
    poisoned = getattr(batch, entry).clone()
    poisoned.fill_(float("nan"))
    algo, _ = make()
    before = weights(algo.policy.net)
    seen: list[str] = []
    with pytest.raises(NonFiniteError, match=name):
        algo.update(
            dataclasses.replace(batch, **{entry: poisoned}),
            generator=torch.Generator(),
            on_nonfinite=lambda name, tensor: seen.append(name),
        )
    assert seen == [name]
    assert torch.equal(weights(algo.policy.net), before)


def test_another_policys_batch_is_refused():
    algo, _ = make()
    batch = fixed_batch()
    with pytest.raises(ShapeError, match=r"latents"):
        algo.update(dataclasses.replace(batch, latents=batch.latents[..., :1]), generator=torch.Generator())


def test_it_solves_a_contextual_bandit():
    """Reward is highest where the action equals the state: the mean distance must fall by a third at least."""
    spec = PolicySpec(obs={"state": 2}, action_dim=2, action_names=("x", "y"), horizon=1, action_steps=1)
    policy = make_policy(spec=spec)
    config = PODPOConfig(
        experimental=True, actor_lr=3e-3, epochs=2, batch_size=256, critic_warmup_iterations=3, state_bandwidth=0.15
    )
    algo = PODPO(policy, ValueNet(spec.obs, 1, (32, 32, 32)), config)
    generator = torch.Generator().manual_seed(0)
    distances = []
    for _ in range(40):
        state = 2.0 * torch.rand(256, 1, 2, generator=generator) - 1.0
        action, chain = policy.sample_chain({"state": state}, generator=generator)
        distance = (action[:, 0] - state[:, 0]).norm(dim=-1)
        distances.append(distance.mean().item())
        done = torch.ones(1, 256, dtype=torch.bool)
        obs = {"state": state[None]}
        batch = RolloutBatch(
            obs=obs,
            next_obs=obs,
            latents=chain.latents[None],
            log_probs=chain.log_probs[None],
            reward=-distance[None],
            terminated=done,
            truncated=~done,
            first=done,
        )
        algo.update(batch, generator=generator)
    assert sum(distances[-5:]) < 0.67 * sum(distances[:4]) / 4 * 5


@pytest.mark.parametrize(
    "bad",
    [
        {"bandwidth": 0.0},
        {"state_bandwidth": -1.0},
        {"max_weight": 0.0},
        {"gamma": 1.1},
        {"gae_lambda": -0.1},
        {"actor_lr": 0.0},
        {"epochs": 0},
        {"batch_size": 0},
        {"critic_warmup_iterations": -1},
        {"max_grad_norm": 0.0},
    ],
)
def test_bad_settings_are_refused(bad):
    with pytest.raises(ConfigError, match=next(iter(bad))):
        PODPOConfig(**bad)
