"""JAGG inside the family's update: exact where it is exact, resumable, and refused where it doesn't fit."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor

from robopo.algos.dppo import Clip, PerStep
from robopo.algos.flow_dppo import DivergenceMask
from robopo.algos.gae_advantage import GAE
from robopo.algos.jagg import Jagg
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.algos.reinflow import Chain
from robopo.critics.value import ValueNet
from robopo.errors import ConfigError
from robopo.nn.dit import DiTConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.exploration import Exploration
from robopo.processes.flow import FlowConfig
from robopo.processes.transitions import CPS, FlowSDE, LearnedNoise, TransitionKernel
from robopo.rollout.collector import Collector
from robopo.types import RolloutBatch
from tests.helpers.fake_policy import FakePolicy
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
CONFIG = PolicyGradientConfig(batch_size=32, epochs=2, critic_warmup_iterations=0, scale_rewards=False)
ALWAYS = Jagg(window=2, min_score=-1.0)  # two steps: exact for any network


def make_policy(kernel: TransitionKernel) -> ChunkPolicy:
    torch.manual_seed(0)
    sizes = {**SPEC.obs, "action": SPEC.action_dim}
    bounds = {key: (-torch.ones(size), torch.ones(size)) for key, size in sizes.items()}
    net, config = DiTConfig(width=8, depth=1, heads=2), ChunkPolicyConfig(reduce=Reduce.SUM)
    policy = build_chunk_policy(SPEC, net, FlowConfig(num_steps=4), config, MinMaxNormalizer(bounds))
    with torch.no_grad():
        for p in policy.parameters():
            p.add_(0.2 * torch.randn_like(p))
    policy.begin_finetuning(4, Exploration(kernel))
    return policy


def make(jagg: Jagg | None, *, kernel: TransitionKernel | None = None, region=None, **changes) -> PolicyGradient:
    policy = make_policy(kernel or FlowSDE(eta=0.3))
    critic = ValueNet(SPEC.obs, 1, (16, 16, 16))
    config = dataclasses.replace(CONFIG, **changes)
    parts = {"ratio": PerStep(), "advantage": GAE(), "trust_region": region or Clip(base=0.1, coef=0.2)}
    accelerator = None if jagg is None else jagg.build(policy, parts["ratio"])
    return PolicyGradient(policy, critic, config, **parts, accelerator=accelerator)


def rollout(algo: PolicyGradient) -> RolloutBatch:
    sim = PointMass(8, max_episode_steps=6, radius=0.75, terminate_on_success=False)
    return Collector(sim, algo.policy).collect(10, torch.Generator().manual_seed(0))


def weights(algo: PolicyGradient) -> Tensor:
    return torch.cat([p.detach().flatten() for p in algo.policy.trainable()]).clone()


@pytest.mark.parametrize("kernel", [FlowSDE(eta=0.3), CPS(eta=0.5), LearnedNoise()])
@pytest.mark.parametrize("region", [Clip(base=0.1, coef=0.2), DivergenceMask()])
def test_one_step_on_everything_is_the_exact_step(kernel, region):
    """One minibatch of all units, windows of two: the same weights after it, also where steps are inactive (CPS)."""
    after = []
    for jagg in (None, ALWAYS):
        algo = make(jagg, kernel=kernel, region=region, epochs=1, batch_size=10**6)
        before = weights(algo)
        batch = rollout(algo)
        metrics = algo.update(batch, generator=torch.Generator().manual_seed(1))
        assert metrics.actor_grad_norm > 0
        after.append((weights(algo) - before, metrics.actor_grad_norm, metrics.actor_loss))
    (moved, norm, loss), (other, other_norm, other_loss) = after
    assert other_norm == pytest.approx(norm, rel=1e-3)
    assert other_loss == pytest.approx(loss, abs=1e-5)
    # Adam's first step is the gradient's sign: only elements with next to no gradient may differ.
    same = (moved - other).abs() < 1e-6
    assert same.float().mean() > 0.97


def test_windows_of_four_take_their_own_way_and_stay_finite():
    algo, exact = make(Jagg(window=4, min_score=-1.0, min_cosine=-1.0)), make(None)
    batch = rollout(algo)
    for a in (algo, exact):
        metrics = a.update(batch, generator=torch.Generator().manual_seed(1))
        assert metrics.actor_grad_norm > 0
    assert algo.accelerator.updates > 1
    assert not torch.equal(weights(algo), weights(exact))


def test_resuming_continues_bit_for_bit():
    algo = make(Jagg(window=4, min_score=-1.0, min_cosine=-1.0, check_every=7))
    batch = rollout(algo)
    algo.update(batch, generator=torch.Generator().manual_seed(1))
    other = make(Jagg(window=4, min_score=-1.0, min_cosine=-1.0, check_every=7))
    other.policy.load_state_dict(copy.deepcopy(algo.policy.state_dict()))
    other.critic.load_state_dict(copy.deepcopy(algo.critic.state_dict()))
    other.load_state_dict(copy.deepcopy(algo.state_dict()))
    for a in (algo, other):
        a.update(batch, generator=torch.Generator().manual_seed(2))
    assert torch.equal(weights(algo), weights(other))
    assert algo.accelerator.state_dict() == other.accelerator.state_dict()


def test_other_ratios_and_policies_are_refused():
    policy = make_policy(FlowSDE(eta=0.3))
    with pytest.raises(ConfigError, match=r"accelerator=Jagg with ratio=Chain.*PerStep"):
        ALWAYS.build(policy, Chain())
    with pytest.raises(ConfigError, match=r"accelerator=Jagg with a FakePolicy.*net_output"):
        ALWAYS.build(FakePolicy(4), PerStep())
