"""From configurations to a ChunkPolicy: one way for new policies and for saved ones."""

from __future__ import annotations

from robopo.nn.denoiser import Denoiser
from robopo.nn.dit import DiT, DiTConfig
from robopo.nn.mlp import DiffusionMLP, DiffusionMLPConfig
from robopo.nn.unet1d import UNet1D, UNet1DConfig
from robopo.policies.base import PolicySpec
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.base import DiffusionConfig
from robopo.processes.build import build_process

type NetConfig = DiffusionMLPConfig | UNet1DConfig | DiTConfig


def build_net(config: NetConfig, spec: PolicySpec) -> Denoiser:
    """The network that ``config`` describes, of the sizes that ``spec`` asks for, with fresh weights."""
    sizes = {"horizon": spec.horizon, "action_dim": spec.action_dim, "cond_dim": spec.cond_dim}
    match config:
        case DiffusionMLPConfig():
            return DiffusionMLP(config, **sizes)
        case UNet1DConfig():
            return UNet1D(config, **sizes)
        case DiTConfig():
            return DiT(config, **sizes)


def build_chunk_policy(
    spec: PolicySpec,
    net_config: NetConfig,
    process_config: DiffusionConfig,
    policy_config: ChunkPolicyConfig,
    normalizer: MinMaxNormalizer,
) -> ChunkPolicy:
    """A policy on the CPU with fresh weights. Raises ConfigError when the parts contradict each other."""
    return ChunkPolicy(spec, build_net(net_config, spec), build_process(process_config), normalizer, policy_config)
