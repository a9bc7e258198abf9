"""Acting from the middle of the initial noise."""

from __future__ import annotations

import torch
from torch import Tensor

from robopo.policies.base import PolicySpec
from robopo.policies.chunk_policy import ACTION, ChunkPolicy
from robopo.types import DenoisingChain, Observation


class ZeroNoise:
    """A policy whose chain starts at zero: with a flow or DDIM the chunk is a function of the observations alone.

    FPO++ (arXiv 2602.02481) evaluates so. It seeks a mode: report it beside random noise, never instead of it.
    """

    def __init__(self, policy: ChunkPolicy) -> None:
        self._policy = policy

    @property
    def spec(self) -> PolicySpec:
        """Of the policy."""
        return self._policy.spec

    def reset(self) -> None:
        """Nothing to forget."""

    def act(self, obs: Observation, *, deterministic: bool = True, generator: torch.Generator | None = None) -> Tensor:
        """[B, H, A] physical."""
        rows, like = next(iter(obs.values())).shape[0], self._policy.normalizer.bounds(ACTION)[0]
        noise = like.new_zeros(rows, self.spec.horizon, self.spec.action_dim)
        return self._policy.act(obs, deterministic=deterministic, generator=generator, noise=noise)

    def sample_chain(self, obs: Observation, *, generator: torch.Generator) -> tuple[Tensor, DenoisingChain]:
        """Explore from random noise, as the policy does."""
        return self._policy.sample_chain(obs, generator=generator)

    def replay(self, obs: Observation, latents: Tensor) -> Tensor:
        """As the policy's."""
        return self._policy.replay(obs, latents)
