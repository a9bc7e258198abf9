"""The critic of an on-policy stage: what it sees, and the statistics that scale it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch

from robopo.cli.pipeline import FinetunablePolicy
from robopo.cli.schema import CriticInputs, FinetuneConfig
from robopo.critics.value import ValueNet
from robopo.errors import ConfigError
from robopo.nn.vision import vision_of
from robopo.nn.vision_build import build_vision
from robopo.nn.vision_resnet import ResNetConfig
from robopo.nn.vision_vit import VitConfig
from robopo.policies.base import PolicySpec
from robopo.policies.running_stats import RunningObsStats, scratch_normalizer
from robopo.types import Observation
from sims.base import SimSpec

PRIVILEGED = "environment_state"
"""The simulator's own entry: what no camera has to guess."""


class Critic(NamedTuple):
    """A value network, the entries of the simulator that it sees and the policy doesn't, and its own statistics."""

    net: ValueNet
    also: tuple[str, ...] = ()
    stats: RunningObsStats | None = None


class JoinedStats:
    """Several statistics that follow the same rollouts."""

    def __init__(self, parts: Sequence[RunningObsStats]) -> None:
        self._parts = tuple(parts)

    def update(self, obs: Observation) -> None:
        """Each takes its own entries."""
        for part in self._parts:
            part.update(obs)

    def state_dict(self) -> dict[str, Any]:
        """One entry each."""
        return {str(n): part.state_dict() for n, part in enumerate(self._parts)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``."""
        for n, part in enumerate(self._parts):
            part.load_state_dict(state[str(n)])


def make_critic(policy: FinetunablePolicy, sim: SimSpec, finetune: FinetuneConfig, device: torch.device) -> Critic:
    """The critic that ``finetune.critic_inputs`` asks for; its weights come from torch's global generator.

    Raises ConfigError where the simulator has no state to show.
    """
    if critic_inputs(policy.spec, sim, finetune.critic_inputs) is CriticInputs.POLICY:
        return Critic(policy_critic(policy.spec, finetune, policy, device))
    sizes = {key: feature.shape[0] for key, feature in sim.observation.items() if not feature.is_image}
    if not sizes:
        raise ConfigError(f"{sim.name} shows pictures alone; use finetune.critic_inputs=policy")
    normalizer = scratch_normalizer(sizes, sim.action.low, sim.action.high)
    net = ValueNet(sizes, policy.spec.obs_steps, finetune.critic_hidden, normalizer).to(device)
    also = tuple(key for key in sizes if key not in policy.spec.obs)
    return Critic(net, also, RunningObsStats(normalizer, list(sizes)))


def critic_inputs(spec: PolicySpec, sim: SimSpec, asked: CriticInputs | None) -> CriticInputs:
    """What is asked for; else the simulator's state for a policy of pictures, where there is one to see."""
    if asked is not None:
        return asked
    better = bool(spec.images) and PRIVILEGED in sim.observation and PRIVILEGED not in spec.obs
    return CriticInputs.STATE if better else CriticInputs.POLICY


def policy_critic(
    spec: PolicySpec, finetune: FinetuneConfig, policy: FinetunablePolicy, device: torch.device
) -> ValueNet:
    """A critic that sees observations as the policy does, with an encoder of its own for pictures."""
    vision, own = vision_of(policy.net), None
    if vision is not None and isinstance(vision.config, VitConfig | ResNetConfig):
        own = build_vision(vision.config, spec.images, obs_steps=spec.obs_steps, low_dim=spec.cond_dim)
    return ValueNet(spec.obs, spec.obs_steps, finetune.critic_hidden, policy.normalizer, vision=own).to(device)
