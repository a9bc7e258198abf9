"""The update on what the group and vine collectors return: unused decisions, and batches that teach nothing."""

from __future__ import annotations

import copy
import math

import pytest
import torch
from torch import Tensor, nn

from robopo.algos.choices import AdvantageEstimator, Observation
from robopo.algos.dppo import Clip, dppo
from robopo.algos.group_relative import GroupRelative
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import NormAdv, PolicyGradientConfig
from robopo.algos.polychromic import Polychromic
from robopo.rollout.episodes import EpisodeSeeds
from robopo.rollout.group_collector import GroupCollector, GroupConfig
from robopo.rollout.vine import VineCollector, VineConfig
from tests.helpers.fake_policy import FakePolicy
from tests.helpers.point_mass import PointMass


class Critic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, obs: Observation) -> Tensor:
        return self.net(torch.cat([obs[key].flatten(1) for key in sorted(obs)], dim=1))[:, 0]


def algorithm(policy: FakePolicy, advantage: AdvantageEstimator, norm_adv: NormAdv) -> PolicyGradient:
    config = PolicyGradientConfig(epochs=2, batch_size=64, critic_warmup_iterations=0, norm_adv=norm_adv)
    return dppo(policy, Critic(), config, advantage=advantage, trust_region=Clip())


def groups(policy: FakePolicy, radius: float) -> GroupCollector:
    sim = PointMass(8, max_episode_steps=12, radius=radius)
    config = GroupConfig(group_size=4)
    return GroupCollector(sim, policy, config, seeds=EpisodeSeeds(0, reserved=range(0)))


@pytest.mark.parametrize("norm_adv", list(NormAdv))
def test_groups_that_all_fail_leave_the_actor_alone(norm_adv: NormAdv) -> None:
    policy = FakePolicy(2)
    before = copy.deepcopy(policy.net.state_dict())
    learner = algorithm(policy, GroupRelative(), norm_adv)
    generator = torch.Generator().manual_seed(0)
    metrics = learner.update(groups(policy, radius=1e-9).collect(6, generator), generator=generator)
    for name, value in policy.net.state_dict().items():
        assert value.equal(before[name]), name
    assert math.isfinite(metrics.actor_loss) and math.isfinite(metrics.value_loss)


def test_what_lies_after_an_episode_changes_nothing() -> None:
    """Garbage in the unused rows of latents and log-probs must not reach the weights."""
    results = []
    for garbage in (False, True):
        policy = FakePolicy(2)
        generator = torch.Generator().manual_seed(0)
        batch = groups(policy, radius=0.6).collect(6, generator)
        use = batch.extras["use"]
        assert not use.all()
        if garbage:
            batch.latents[~use] = 1e3
            batch.log_probs[~use] = -1e3
        algorithm(policy, GroupRelative(), NormAdv.NONE).update(batch, generator=generator)
        results.append(policy.net.state_dict())
    for name, value in results[0].items():
        assert value.equal(results[1][name]), name
    assert any(not value.equal(FakePolicy(2).net.state_dict()[name]) for name, value in results[0].items())


def test_a_vine_batch_updates_both_networks() -> None:
    policy = FakePolicy(2)
    before = copy.deepcopy(policy.net.state_dict())
    learner = algorithm(policy, Polychromic(window=2), NormAdv.MINIBATCH)
    sim = PointMass(4, max_episode_steps=12, radius=0.6)
    source = VineCollector(sim, policy, VineConfig(states=1, continuations=4, set_size=2), seed=0)
    generator = torch.Generator().manual_seed(0)
    metrics = learner.update(source.collect(4, generator), generator=generator)
    assert math.isfinite(metrics.actor_loss) and metrics.value_loss > 0.0
    assert any(not value.equal(before[name]) for name, value in policy.net.state_dict().items())
