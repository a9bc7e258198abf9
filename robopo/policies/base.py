"""What a policy is, and what every policy offers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from robopo.errors import ConfigError
from robopo.types import DenoisingChain, Observation


@dataclass(frozen=True, slots=True)
class PolicySpec:
    """Sizes, names and timing that a policy was trained for."""

    obs: Mapping[str, int]
    """Observation key -> D of the numbers. The sorted order of the keys is the order of concatenation."""
    action_dim: int
    """A."""
    action_names: tuple[str, ...]
    """One name per action dimension."""
    obs_steps: int = 1
    """To, observations a decision sees."""
    horizon: int = 4
    """H, rows a decision predicts."""
    action_steps: int = 4
    """Ta, rows that are executed before the next decision; only they enter log-probabilities."""
    control_hz: float = 20.0
    """Rows per second."""
    action_mode: str = "ee_delta"
    """Meaning of the action: ``joint_position``, ``joint_delta`` or ``ee_delta``."""
    task: str = ""
    """Name of the task in the training data."""
    images: Mapping[str, tuple[int, int, int]] = field(default_factory=dict[str, tuple[int, int, int]])
    """Observation key -> (height, width, 3) of the pictures, uint8; sorted likewise."""

    def __post_init__(self) -> None:
        # Plain, sorted dictionaries: equal specs compare equal and become equal JSON.
        object.__setattr__(self, "obs", {str(key): int(self.obs[key]) for key in sorted(self.obs)})
        images = {str(key): tuple(int(size) for size in self.images[key]) for key in sorted(self.images)}
        object.__setattr__(self, "images", images)
        object.__setattr__(self, "action_names", tuple(self.action_names))
        if not {**self.obs, **images} or any(size < 1 for size in self.obs.values()):
            raise ConfigError(f"obs={self.obs}: expected at least one observation, each of 1 or more numbers")
        if any(len(shape) != 3 or shape[2] != 3 or min(shape) < 1 for shape in images.values()):
            raise ConfigError(f"images={images}: expected (height, width, 3) each")
        if both := self.obs.keys() & images.keys():
            raise ConfigError(f"{sorted(both)} can't be numbers and pictures at once: name them differently")
        if self.action_dim < 1 or len(self.action_names) != self.action_dim:
            raise ConfigError(
                f"action_dim={self.action_dim} with {len(self.action_names)} action_names; give one name each"
            )
        if self.obs_steps < 1:
            raise ConfigError(f"obs_steps={self.obs_steps}: a policy sees at least one observation")
        if not 1 <= self.action_steps <= self.horizon:
            raise ConfigError(f"action_steps={self.action_steps}: expected 1 to horizon={self.horizon}")
        if not self.control_hz > 0.0:
            raise ConfigError(f"control_hz={self.control_hz}: must be positive")

    @property
    def obs_dim(self) -> int:
        """O, numbers per observation step, pictures aside."""
        return sum(self.obs.values())

    @property
    def cond_dim(self) -> int:
        """C = To * O, the size of the network's condition without what an encoder makes of pictures."""
        return self.obs_steps * self.obs_dim


class Policy(Protocol):
    """Chooses chunks of actions. Observations [B, To, D] and chunks [B, H, A] are in physical units.

    Pictures among the observations are [B, To, height, width, 3] uint8.
    """

    @property
    def spec(self) -> PolicySpec: ...

    def reset(self) -> None:
        """Forget everything about the running episodes."""
        ...

    def act(self, obs: Observation, *, deterministic: bool = True, generator: torch.Generator | None = None) -> Tensor:
        """[B, H, A]. deterministic: as little noise as the sampler allows after the initial latent."""
        ...

    def sample_chain(self, obs: Observation, *, generator: torch.Generator) -> tuple[Tensor, DenoisingChain]:
        """Explore: chunk [B, H, A] and the chain whose likelihood an algorithm can score."""
        ...

    def replay(self, obs: Observation, latents: Tensor) -> Tensor:
        """Score latents [B, K'+1, H, A] -> log-probabilities [B, K'] under the present weights, with a graph."""
        ...
