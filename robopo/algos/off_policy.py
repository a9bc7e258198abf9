"""What a method that learns from a replay buffer offers, and how the collector acts with it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import torch
from torch import Tensor

from robopo.data.replay import ReplayBuffer
from robopo.policies.base import PolicySpec
from robopo.types import DenoisingChain, Observation


class OffPolicyAlgorithm(Protocol):
    """Explores with its present networks, and updates them from a buffer that somebody else fills."""

    @property
    def spec(self) -> PolicySpec:
        """Of the policy that acts."""
        ...

    def explore(self, obs: Observation, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
        """Entries [B, To, D] -> the chunk [B, H, A] in physical units, and the same normalised."""
        ...

    def num_updates(self, decisions: int) -> int:
        """Gradient steps after ``decisions`` (T * E) new ones: the replay ratio."""
        ...

    def update(self, buffer: ReplayBuffer, *, updates: int, generator: torch.Generator) -> Any:
        """Take ``updates`` gradient steps; a mapping, NamedTuple or dataclass of scalars."""
        ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state: Mapping[str, Any]) -> None: ...


class Explorer:
    """An off-policy algorithm in the shape of a policy, so that the one collector runs it.

    Its chain is the action alone: nothing here has a likelihood.
    """

    def __init__(self, algorithm: OffPolicyAlgorithm) -> None:
        self.algorithm = algorithm

    @property
    def spec(self) -> PolicySpec:
        return self.algorithm.spec

    def reset(self) -> None:
        """Nothing to forget."""

    def act(self, obs: Observation, *, deterministic: bool = True, generator: torch.Generator | None = None) -> Tensor:
        """[B, H, A] as explored; ``deterministic`` changes nothing: evaluate the exported policy instead."""
        del deterministic
        return self.algorithm.explore(obs, generator)[0]

    def sample_chain(self, obs: Observation, *, generator: torch.Generator) -> tuple[Tensor, DenoisingChain]:
        """Chunk [B, H, A] physical, and the chain of one latent [B, 1, H, A]."""
        chunk, action = self.algorithm.explore(obs, generator)
        return chunk, DenoisingChain(latents=action[:, None], log_probs=action.new_zeros(len(action), 0))

    def replay(self, obs: Observation, latents: Tensor) -> Tensor:
        """No steps, no log-probabilities: [B, 0]."""
        del obs
        return latents.new_zeros(len(latents), 0)
