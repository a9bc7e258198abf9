"""From configurations to a ChunkPolicy: one way for new policies and for saved ones."""

from __future__ import annotations

from dataclasses import replace

from robopo.errors import ConfigError
from robopo.nn.denoiser import Denoiser
from robopo.nn.dit import DiT, DiTConfig
from robopo.nn.mlp import DiffusionMLP, DiffusionMLPConfig
from robopo.nn.unet1d import UNet1D, UNet1DConfig
from robopo.nn.vision_build import VisionNetConfig
from robopo.policies.base import PolicySpec
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.vision import attached, condition_dim
from robopo.processes.build import ProcessConfig, build_process

type NetConfig = DiffusionMLPConfig | UNet1DConfig | DiTConfig


def build_net(
    config: NetConfig, spec: PolicySpec, extra_cond: int = 0, vision: VisionNetConfig | None = None
) -> Denoiser:
    """The network that ``config`` describes, of the sizes that ``spec`` asks for, with fresh weights.

    extra_cond: numbers that the process appends to the condition. vision: encoder of the pictures of ``spec``.
    """
    cond_dim = condition_dim(spec, vision) + extra_cond
    sizes = {"horizon": spec.horizon, "action_dim": spec.action_dim, "cond_dim": cond_dim}
    match config:
        case DiffusionMLPConfig():
            return attached(DiffusionMLP(config, **sizes), spec, vision)
        case UNet1DConfig():
            return attached(UNet1D(config, **sizes), spec, vision)
        case DiTConfig():
            return attached(DiT(config, **sizes), spec, vision)


def build_chunk_policy(
    spec: PolicySpec,
    net_config: NetConfig,
    process_config: ProcessConfig,
    policy_config: ChunkPolicyConfig,
    normalizer: MinMaxNormalizer,
    vision: VisionNetConfig | None = None,
) -> ChunkPolicy:
    """A policy on the CPU with fresh weights. Raises ConfigError when the parts contradict each other."""
    process = build_process(process_config)
    net = build_net(net_config, spec, process.extra_cond, vision)
    return ChunkPolicy(spec, net, process, normalizer, policy_config)


def with_num_steps(policy: ChunkPolicy, num_steps: int) -> ChunkPolicy:
    """The same networks under a sampler of ``num_steps`` steps; ``policy`` itself is left as it is.

    Raises ConfigError where the process can't (DDPM visits every step) or fine-tuning has begun with other steps.
    """
    if num_steps == policy.process.num_steps:
        return policy
    if policy.config.ft_steps is not None:
        raise ConfigError(
            f"num_steps={num_steps}, but the policy was fine-tuned with {policy.process.num_steps} sampler steps; "
            "leave it at that number"
        )
    process = build_process(replace(policy.process.config, num_steps=num_steps)).to(policy.process.timesteps.device)
    return ChunkPolicy(policy.spec, policy.net, process, policy.normalizer, policy.config)
