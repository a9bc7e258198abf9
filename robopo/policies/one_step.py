"""What the policies share that draw a whole chunk at once from a distribution with a density.

To the policy-gradient family each is a chain of one denoising step: its first latent is zero and says nothing, its
second is the normalised chunk. So K' = 1 and DPPO's objective becomes PPO's (Ren et al. 2024, arXiv 2409.00588,
baselines).
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError, ShapeError
from robopo.policies.base import PolicySpec
from robopo.policies.config import Reduce
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.obs_encoding import ACTION, encode_obs, shifted
from robopo.policies.parts import check_parts
from robopo.types import DenoisingChain, Moments, Observation


@dataclass(frozen=True, slots=True)
class OneStepConfig:
    """Sampling, likelihood and fine-tuning of a GaussianPolicy or a GMMPolicy.

    Log-probabilities are never clamped. The published mixture clamps its joint log-density, a sum, at 2, which is
    nearly always exceeded: the ratio is then 1 and the policy gradient exactly zero from the start.
    """

    ft_steps: int | None = None
    """1: fine-tuning has begun; 0: it never will; None: not yet."""
    squash: bool = True
    """Means are tanh of the network's output, so inside [-1, 1]; false: the output itself."""
    randn_clip: float | None = 3.0
    """Standard draws are clipped to this many standard deviations; None: no bound. Densities ignore it."""
    obs_clip: float | None = None
    """Bound on normalised observations; None: no bound."""
    reduce: Reduce = Reduce.MEAN
    """Joint log-density of the executed rows, or that divided by their Ta * A numbers."""

    def __post_init__(self) -> None:
        if self.ft_steps not in (None, 0, 1):
            raise ConfigError(f"ft_steps={self.ft_steps}: a policy of one step takes 0 or 1, or null before it learns")
        for name in ("randn_clip", "obs_clip"):
            value: float | None = getattr(self, name)
            if value is not None and value <= 0.0:
                raise ConfigError(f"{name}={value}: must be positive, or null for no bound")

    @property
    def compat_published(self) -> bool:
        """Never: the likelihood is always the exact one."""
        return False


class OneStepPolicy[Net: nn.Module](nn.Module, ABC):
    """Draws a chunk [B, H, A] given the last To observations. frozen_net: copy of ``net`` from before fine-tuning."""

    def __init__(
        self, spec: PolicySpec, net: Net, normalizer: MinMaxNormalizer, config: OneStepConfig | None = None
    ) -> None:
        """normalizer: statistics of every observation of ``spec`` and of ``action``.

        With ``config.ft_steps`` set, fine-tuning begins at once. Raises ConfigError when the parts don't fit together.
        """
        super().__init__()
        config = OneStepConfig() if config is None else config
        check_parts(spec, net, normalizer)
        self.spec, self.net, self.normalizer = spec, net, normalizer
        self.frozen_net: Net | None = None
        self.config = replace(config, ft_steps=None)
        if config.ft_steps is not None:
            self.begin_finetuning(config.ft_steps)

    @property
    def ft_steps(self) -> int:
        """K': 1 while fine-tuning, else 0."""
        return self.config.ft_steps or 0

    @property
    @abstractmethod
    def has_moments(self) -> bool:
        """Whether the chunk is a Gaussian given the observation."""

    @property
    def learns_std(self) -> bool:
        """Always: the variances are parameters of ``net``."""
        return True

    def begin_finetuning(self, ft_steps: int = 1, kernel: object | None = None) -> None:
        """Keep a frozen copy of ``net``; ``net`` learns with ft_steps = 1. Asking again for the same changes nothing.

        kernel: must be None, there is nothing to exchange. Raises ConfigError for other arguments.
        """
        if kernel is not None:
            raise ConfigError(
                f"kernel={type(kernel).__name__}: a {type(self).__name__} has its own noise; use kernel=null"
            )
        if self.config.ft_steps == ft_steps:
            return
        if self.config.ft_steps is not None:
            raise ConfigError(f"ft_steps={ft_steps}, but fine-tuning has begun with {self.config.ft_steps}")
        self.config = replace(self.config, ft_steps=ft_steps)
        self.frozen_net = copy.deepcopy(self.net).requires_grad_(False).eval()

    def train(self, mode: bool = True) -> Self:
        """Set the training mode, but the frozen copy stays in evaluation mode."""
        super().train(mode)
        if self.frozen_net is not None:
            self.frozen_net.eval()
        return self

    def trainable(self) -> list[nn.Parameter]:
        """Parameters of ``net``, its variances among them."""
        return list(self.net.parameters())

    def end_iteration(self, done: int) -> None:
        """Nothing follows a schedule."""

    def reset(self) -> None:
        """Nothing to forget: every decision depends on its observations alone."""

    def encode(self, obs: Observation) -> Tensor:
        """Observation entries [B, To, D] -> condition [B, C], normalised; pictures encoded. Raises ShapeError."""
        return encode_obs(self.spec, self.normalizer, obs, self.config.obs_clip, self.net)

    def encode_for_cloning(self, obs: Observation, generator: torch.Generator | None) -> Tensor:
        """As ``encode``, with pictures shifted at random as the encoder's config says; without any, draws nothing."""
        return self.encode(shifted(self.spec, obs, self.net, generator))

    @abstractmethod
    def draw(self, cond: Tensor, *, deterministic: bool, generator: torch.Generator | None) -> DenoisingChain:
        """One chunk per row of cond [B, C]: a chain with K' = 1."""

    @abstractmethod
    def joint_log_prob(self, cond: Tensor, action: Tensor) -> Tensor:
        """Log-density [B] of the executed rows of action [B, H, A] (normalised) under ``net``, with a graph."""

    @torch.no_grad()
    def act(self, obs: Observation, *, deterministic: bool = True, generator: torch.Generator | None = None) -> Tensor:
        """Observation entries [B, To, D] -> chunk [B, H, A], physical; deterministic: no noise at all."""
        chain = self.draw(self.encode(obs), deterministic=deterministic, generator=generator)
        return self.normalizer.invert(ACTION, chain.latents[:, -1])

    @torch.no_grad()
    def sample_chain(
        self, obs: Observation, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, DenoisingChain]:
        """Explore: chunk [B, H, A] physical, and its chain: latents [B, 2, H, A] (zeros, then the chunk).

        Before fine-tuning the chain holds the chunk alone, and no log-probability.
        """
        chain = self.draw(self.encode(obs), deterministic=False, generator=generator)
        chunk = self.normalizer.invert(ACTION, chain.latents[:, -1])
        if self.ft_steps == 0:
            chain = DenoisingChain(latents=chain.latents[:, 1:], log_probs=chain.log_probs[:, :0])
        return chunk, chain

    def replay(self, obs: Observation, latents: Tensor) -> Tensor:
        """Log-probabilities [B, K'] of latents [B, K'+1, H, A], with a graph."""
        if latents.shape[1] != self.ft_steps + 1:
            raise ShapeError(f"latents are {list(latents.shape)}, expected [B, {self.ft_steps + 1}, H, A]")
        if self.ft_steps == 0:
            return latents.new_zeros(latents.shape[0], 0)
        return self.reduced(self.joint_log_prob(self.encode(obs), latents[:, 1]))[:, None]

    def rescore(self, obs: Observation, latents: Tensor) -> DenoisingChain:
        """The chain of latents [B, 2, H, A] under the present weights at ``obs``; moments where there are some."""
        log_probs = self.replay(obs, latents)
        if not self.has_moments:
            return DenoisingChain(latents, log_probs)
        first = torch.zeros(latents.shape[0], dtype=torch.long, device=latents.device)
        mean, std = self.step_moments(obs, latents[:, 0], first)
        return DenoisingChain(latents, log_probs, mean[:, None], std[:, None])

    @abstractmethod
    def step_moments(self, obs: Observation, x_in: Tensor, i: Tensor) -> Moments:
        """Mean and std [N, H, A] of the chunk, with a graph; ask ``has_moments`` first."""

    def step_log_prob(self, obs: Observation, x_in: Tensor, x_out: Tensor, i: Tensor) -> Tensor:
        """Log-probability [N] of the chunks x_out [N, H, A] (normalised), with a graph; x_in and i say nothing."""
        del x_in, i
        return self.reduced(self.joint_log_prob(self.encode(obs), x_out))

    def reduced(self, joint: Tensor) -> Tensor:
        """Joint log-density [B] -> [B] as ``config.reduce`` says."""
        if self.config.reduce is Reduce.SUM:
            return joint
        return joint / (self.spec.action_steps * self.spec.action_dim)

    def squashed(self, out: Tensor) -> Tensor:
        """The network's output -> means, normalised."""
        return out.tanh() if self.config.squash else out

    def clipped_noise(self, like: Tensor, generator: torch.Generator | None) -> Tensor:
        """Standard draws of the shape of ``like``, clipped to ``randn_clip``."""
        z = torch.randn(like.shape, generator=generator, device=like.device, dtype=like.dtype)
        bound = self.config.randn_clip
        return z if bound is None else z.clamp_(-bound, bound)
