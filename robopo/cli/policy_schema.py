"""Settings of policies: chunk sizes, a process and a network. YAML under ``configs/policy`` puts them together."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from robopo.nn.dit import DiTConfig
from robopo.nn.gaussian_mlp import GaussianMLPConfig
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.nn.unet1d import UNet1DConfig
from robopo.nn.vision_resnet import ResNetConfig
from robopo.nn.vision_vit import VitConfig
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.one_step import OneStepConfig
from robopo.policies.tanh_gaussian import TanhGaussianConfig
from robopo.processes.base import DiffusionConfig
from robopo.processes.flow import FlowConfig


@dataclass(frozen=True, slots=True)
class ChunkPolicySettings:
    """A diffusion or flow policy. With a perceptron, action_steps should be the horizon: it can't tell rows apart."""

    obs_steps: int = 1
    """To, observations a decision sees."""
    horizon: int = 4
    """H, rows a decision predicts."""
    action_steps: int = 4
    """Ta, rows that run before the next decision."""
    process: Any = None
    """Noise schedule and sampler: a DiffusionConfig or a FlowConfig."""
    sampling: ChunkPolicyConfig = field(default_factory=ChunkPolicyConfig)
    """Noise floors, clips and likelihood."""
    net: Any = None
    """Sizes of the network: a DiffusionMLPConfig, UNet1DConfig or DiTConfig."""
    vision: Any = None
    """Encoder of pictures: a VitConfig or a ResNetConfig; null: the policy sees numbers alone."""
    obs: tuple[str, ...] | None = None
    """Observation entries that the policy sees; null: all numbers, or with ``vision`` all pictures and all numbers but
    environment_state, which no robot has."""


class DirectKind(StrEnum):
    """A policy that draws its chunk at once."""

    GAUSSIAN = "gaussian"
    GMM = "gmm"


@dataclass(frozen=True, slots=True)
class DirectPolicySettings:
    """A Gaussian policy, or a mixture of Gaussians, over chunks."""

    kind: DirectKind = DirectKind.GAUSSIAN
    """One Gaussian, or ``net.num_modes`` of them."""
    obs_steps: int = 1
    """To, observations a decision sees."""
    horizon: int = 4
    """H, rows a decision predicts."""
    action_steps: int = 4
    """Ta, rows that run before the next decision."""
    sampling: OneStepConfig = field(default_factory=OneStepConfig)
    """Squashing, clips and likelihood."""
    net: GaussianMLPConfig = field(default_factory=GaussianMLPConfig)
    """Sizes of the network, and the range of its standard deviations."""
    vision: Any = None
    """Encoder of pictures: a VitConfig or a ResNetConfig; null: the policy sees numbers alone."""
    obs: tuple[str, ...] | None = None
    """Observation entries that the policy sees; null: all numbers, or with ``vision`` all pictures and all numbers but
    environment_state, which no robot has."""


@dataclass(frozen=True, slots=True)
class OwnPolicySettings:
    """A policy that a function of another package makes."""

    obs_steps: int = 1
    """To, observations a decision sees."""
    horizon: int = 4
    """H, rows a decision predicts."""
    action_steps: int = 4
    """Ta, rows that run before the next decision."""
    make: Any = None
    """A ``_target_`` and its settings, called with ``spec`` and ``normalizer`` besides; returns one of robopo's
    policies, which can be saved and loaded."""


@dataclass(frozen=True, slots=True)
class TanhGaussianSettings:
    """The actor of soft actor-critic."""

    obs_steps: int = 1
    """To, observations a decision sees."""
    horizon: int = 1
    """H, rows a decision predicts."""
    action_steps: int = 1
    """Ta, the same number: every row runs."""
    net: TanhGaussianConfig = field(default_factory=TanhGaussianConfig)
    """Sizes of the network, and the range of its spread."""


type PolicySettings = ChunkPolicySettings | DirectPolicySettings | TanhGaussianSettings | OwnPolicySettings

POLICIES = {
    ("policy", "chunk_policy_schema"): ChunkPolicySettings,
    ("policy", "direct_policy_schema"): DirectPolicySettings,
    ("policy", "tanh_gaussian_schema"): TanhGaussianSettings,
    ("policy", "own_policy_schema"): OwnPolicySettings,
    ("policy/process", "diffusion_schema"): DiffusionConfig,
    ("policy/process", "flow_schema"): FlowConfig,
    ("policy/net", "mlp_schema"): DiffusionMLPConfig,
    ("policy/net", "unet_schema"): UNet1DConfig,
    ("policy/net", "dit_schema"): DiTConfig,
    ("policy/vision", "vit_schema"): VitConfig,
    ("policy/vision", "resnet_schema"): ResNetConfig,
}
