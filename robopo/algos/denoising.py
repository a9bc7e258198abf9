"""What the methods that train a denoiser by regression need of a policy, and the checks they share."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError
from robopo.policies.base import PolicySpec
from robopo.policies.config import ChunkPolicyConfig
from robopo.processes.base import Process
from robopo.types import DenoisingChain, Observation


class DenoisingPolicy(Protocol):
    """A diffusion or flow policy over chunks, all of whose steps may learn."""

    spec: PolicySpec
    config: ChunkPolicyConfig
    net: nn.Module
    frozen_net: nn.Module | None
    process: Process

    @property
    def ft_steps(self) -> int:
        """K', the denoising steps that learn; 0 also for a policy whose fine-tuning hasn't begun."""
        ...

    def denoising_error(self, obs: Observation, clean: Tensor, generator: torch.Generator | None) -> Tensor:
        """Squared error [B, H] of ``net`` at random levels of clean [B, H, A] (normalised), averaged over A."""
        ...

    def sample_chain(
        self, obs: Observation, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, DenoisingChain]:
        """Explore: chunk [B, H, A] physical, and its chain, whose last latent is the same chunk, normalised."""
        ...


class DifferentiablePolicy(DenoisingPolicy, Protocol):
    """One that can be sampled with a graph."""

    def sample_differentiable(
        self, obs: Observation, generator: torch.Generator | None = None, noise: Tensor | None = None
    ) -> Tensor:
        """Normalised chunk [B, H, A], with a graph through every denoising step."""
        ...


def check_learns_everywhere(policy: DenoisingPolicy, method: str) -> None:
    """Raise ConfigError when some denoising steps use a frozen network: regression trains every noise level."""
    if policy.frozen_net is not None and policy.ft_steps != (steps := policy.process.num_steps):
        raise ConfigError(
            f"{method} trains all {steps} denoising steps, but this policy fine-tunes only its last "
            f"{policy.ft_steps}; set finetune.ft_steps={steps} and start from a policy that no other method fine-tuned"
        )


def denoising_errors(
    policy: DenoisingPolicy, obs: Observation, action: Tensor, generator: torch.Generator | None
) -> Tensor:
    """Denoising error [N] of whole chunks: rows that don't run are learned too, or they would drift."""
    return policy.denoising_error(obs, action, generator).mean(1)


@torch.no_grad()
def explored(policy: DenoisingPolicy, obs: Observation, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """A chunk [B, H, A] of the exploring policy, physical and normalised."""
    chunk, chain = policy.sample_chain(obs, generator=generator)
    return chunk, chain.latents[:, -1]


def updates_for(decisions: int, *, replay_ratio: float, batch_size: int) -> int:
    """Gradient steps that use each new decision ``replay_ratio`` times on average; at least one."""
    return max(1, round(decisions * replay_ratio / batch_size))


_TINY = 1e-300
_POSITIVE = (_TINY, math.inf, "a positive number")
_COUNT = (1, math.inf, "1 or more")
_SHARE = (0.0, 1.0, "a number from 0 to 1")
_RANGES: Mapping[str, tuple[float, float, str]] = {
    **dict.fromkeys(("actor_lr", "critic_lr", "replay_ratio", "critic_replay_ratio"), _POSITIVE),
    **dict.fromkeys(("reward_scale", "beta", "max_grad_norm"), _POSITIVE),
    **dict.fromkeys(("batch_size", "epochs", "buffer_steps", "candidates"), _COUNT),
    **dict.fromkeys(("gamma", "lam"), _SHARE),
    "tau": (_TINY, 1.0, "0 < tau <= 1"),
    "critic_warmup_iterations": (0, math.inf, "0 or more"),
    "max_weight": (1.0, math.inf, "1 or more, the weight of an average decision"),
}


def check_ranges(config: object) -> None:
    """Raise ConfigError for a setting that several methods have and that is out of range; None is always allowed."""
    for name, (low, high, expected) in _RANGES.items():
        value: float | None = getattr(config, name, None)
        if value is not None and not low <= value <= high:
            raise ConfigError(f"{name}={value}: expected {expected}")
