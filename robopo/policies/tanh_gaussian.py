"""A squashed Gaussian policy whose spread depends on the state: the actor of soft actor-critic.

Haarnoja et al. 2018, arXiv 1812.05905, appendix C. RLPD (arXiv 2302.02948) and Cal-QL (arXiv 2303.05479) use it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from robopo.errors import ConfigError
from robopo.nn.activation import Activation
from robopo.nn.mlp import plain_mlp
from robopo.policies.base import PolicySpec
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.obs_encoding import ACTION, encode_obs
from robopo.policies.parts import check_parts
from robopo.processes.kernels import gaussian_log_prob
from robopo.types import DenoisingChain, Observation

OBS_CLIP = 5.0
"""Bound on normalised observations, as the critics have it: an object that fell off the table must not blow up."""


@dataclass(frozen=True, slots=True)
class TanhGaussianConfig:
    """Sizes of a TanhGaussianPolicy's network and the range of its spread."""

    hidden: tuple[int, ...] = (256, 256, 256)
    """Widths of a plain perceptron, one or more."""
    activation: Activation = Activation.RELU
    """Nonlinearity."""
    min_log_std: float = -5.0
    """Least log-std before squashing."""
    max_log_std: float = 2.0
    """Largest log-std before squashing."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(int(width) for width in self.hidden))
        if not self.hidden or any(width < 1 for width in self.hidden):
            raise ConfigError(f"hidden={self.hidden}: expected one or more positive widths")
        if not self.min_log_std < self.max_log_std:
            raise ConfigError(
                f"min_log_std={self.min_log_std}, max_log_std={self.max_log_std}: expected min_log_std < max_log_std"
            )


class TanhGaussianMLP(nn.Module):
    """Mean and log-std of the chunk before squashing, from one perceptron."""

    def __init__(self, config: TanhGaussianConfig, *, horizon: int, action_dim: int, cond_dim: int) -> None:
        """horizon: H, action_dim: A, cond_dim: C."""
        super().__init__()
        self.config = config
        self.horizon, self.action_dim, self.cond_dim = horizon, action_dim, cond_dim
        self.body = plain_mlp((cond_dim, *config.hidden, 2 * horizon * action_dim), config.activation)

    def forward(self, cond: Tensor) -> tuple[Tensor, Tensor]:
        """Map cond [..., C] -> mean and log-std [..., H, A]."""
        out = self.body(cond).unflatten(-1, (2, self.horizon, self.action_dim))
        low, high = self.config.min_log_std, self.config.max_log_std
        # A smooth bound: a clamp would have no gradient outside.
        return out.select(-3, 0), low + 0.5 * (high - low) * (out.select(-3, 1).tanh() + 1.0)


class Drawn(NamedTuple):
    """Chunks [..., H, A], normalised and inside [-1, 1], and their log-density [...], both with a graph."""

    action: Tensor
    log_prob: Tensor


class TanhGaussianPolicy(nn.Module):
    """Chunk = tanh(u), u ~ N(mean(s), std(s)^2), independent over its Ta * A numbers; H = Ta: every row runs."""

    def __init__(
        self,
        spec: PolicySpec,
        normalizer: MinMaxNormalizer,
        config: TanhGaussianConfig | None = None,
    ) -> None:
        """normalizer: statistics of every observation of ``spec`` and of ``action``, whose bounds are never left.

        Raises ConfigError for H > Ta: a row that never runs would add entropy which is worth nothing.
        """
        super().__init__()
        if spec.horizon != spec.action_steps:
            raise ConfigError(
                f"horizon={spec.horizon}, action_steps={spec.action_steps}: a soft actor needs them equal; "
                "set horizon to action_steps"
            )
        self.config = TanhGaussianConfig() if config is None else config
        self.spec, self.normalizer = spec, normalizer
        self.net = TanhGaussianMLP(
            self.config, horizon=spec.horizon, action_dim=spec.action_dim, cond_dim=spec.cond_dim
        )
        check_parts(spec, self.net, normalizer)

    def reset(self) -> None:
        """Nothing to forget: every decision depends on its observations alone."""

    def encode(self, obs: Observation) -> Tensor:
        """Observation entries [B, To, D] -> condition [B, C], normalised and bounded. Raises ShapeError."""
        return encode_obs(self.spec, self.normalizer, obs, OBS_CLIP)

    def rsample(self, cond: Tensor, generator: torch.Generator | None) -> Drawn:
        """One chunk for each row of cond [..., C], reparametrised: the gradient reaches the network through both."""
        mean, log_std = self.net(cond)
        z = torch.randn(mean.shape, generator=generator, device=mean.device, dtype=mean.dtype)
        raw = torch.addcmul(mean, z, log_std.exp())
        log_prob = gaussian_log_prob(raw, mean, log_std.exp()) - log_tanh_slope(raw)
        return Drawn(raw.tanh(), log_prob.sum((-1, -2)))

    @torch.no_grad()
    def act(self, obs: Observation, *, deterministic: bool = True, generator: torch.Generator | None = None) -> Tensor:
        """Observation entries [B, To, D] -> chunk [B, H, A], physical; deterministic: tanh of the mean."""
        cond = self.encode(obs)
        action = self.net(cond)[0].tanh() if deterministic else self.rsample(cond, generator).action
        return self.normalizer.invert(ACTION, action)

    @torch.no_grad()
    def sample_chain(
        self, obs: Observation, *, generator: torch.Generator | None = None
    ) -> tuple[Tensor, DenoisingChain]:
        """Explore: chunk [B, H, A] physical, and a chain that holds it alone, normalised: latents [B, 1, H, A]."""
        action = self.rsample(self.encode(obs), generator).action
        chain = DenoisingChain(latents=action[:, None], log_probs=action.new_zeros(len(action), 0))
        return self.normalizer.invert(ACTION, action), chain

    def replay(self, obs: Observation, latents: Tensor) -> Tensor:
        """No denoising step is scored: [B, 0]."""
        del obs
        return latents.new_zeros(latents.shape[0], 0)


def log_tanh_slope(u: Tensor) -> Tensor:
    """log(1 - tanh(u)^2) = 2 (log 2 - u - softplus(-2 u)), exact also where tanh(u) rounds to 1."""
    return 2.0 * (math.log(2.0) - u - functional.softplus(-2.0 * u))
