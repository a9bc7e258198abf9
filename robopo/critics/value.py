"""The state-value network of PPO-type learners."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError, ShapeError, did_you_mean
from robopo.nn.activation import Activation
from robopo.nn.mlp import ResidualMLP
from robopo.nn.vision import VisionEncoder
from robopo.types import Observation

OBS_CLIP = 5.0
"""Bound on normalised observations. An object that falls off the table leaves the demonstrations' range a hundredfold;
unbounded, the values of such states explode and drown the advantages of all the others."""


class Normalizer(Protocol):
    """Maps physical units to about [-1, 1]; the policy's own."""

    def apply(self, key: str, x: Tensor) -> Tensor:
        """Entry [..., D] of observation ``key`` -> [..., D]."""
        ...


class ValueNet(nn.Module):
    """V(s) from the normalised, flattened observation history: DPPO's critic, which sees no denoising step.

    Ren et al. 2024, arXiv 2409.00588, appendix on architectures: 3 x 256, Mish, residual.
    """

    def __init__(
        self,
        obs: Mapping[str, int],
        obs_steps: int,
        hidden: Sequence[int] = (256, 256, 256),
        normalizer: Normalizer | None = None,
        *,
        activation: Activation = Activation.MISH,
        vision: VisionEncoder | None = None,
    ) -> None:
        """obs: name -> D, read in sorted order. normalizer: the policy's; None takes observations as they are.

        vision: the critic's own encoder of pictures, whose features are put beside the numbers.
        """
        super().__init__()
        if not (obs or vision) or obs_steps < 1:
            raise ConfigError(f"obs={dict(obs)}, obs_steps={obs_steps}: expected at least one observation and one step")
        self.obs, self.obs_steps = dict(sorted(obs.items())), obs_steps
        self.normalizer = normalizer
        self.vision = vision
        size = obs_steps * sum(self.obs.values()) + (0 if vision is None else vision.dim)
        self.net = ResidualMLP(size, 1, hidden, activation=activation)

    def forward(self, obs: Observation) -> Tensor:
        """Entries [B, To, D] in physical units, and pictures where there is an encoder -> [B]."""
        parts = [self._entry(obs, key, size).flatten(1) for key, size in self.obs.items()]
        if self.vision is not None:
            parts.append(self._features(self.vision, obs, parts))
        return self.net(torch.cat(parts, dim=1)).squeeze(1)

    def _features(self, vision: VisionEncoder, obs: Observation, parts: list[Tensor]) -> Tensor:
        for key in vision.images:
            if key not in obs:
                raise ShapeError(f"picture {key!r} is missing{did_you_mean(key, obs)}")
        pictures = [obs[key] for key in vision.images]
        low = torch.cat(parts, dim=1) if parts else next(vision.parameters()).new_zeros(len(pictures[0]), 0)
        return vision(pictures, low)

    def _entry(self, obs: Observation, key: str, size: int) -> Tensor:
        if key not in obs:
            raise ShapeError(f"observation {key!r} is missing{did_you_mean(key, obs)}")
        x = obs[key]
        if x.shape[1:] != (self.obs_steps, size):
            raise ShapeError(f"observation {key!r} is {tuple(x.shape)}, expected [B, {self.obs_steps}, {size}]")
        return x if self.normalizer is None else self.normalizer.apply(key, x).clamp(-OBS_CLIP, OBS_CLIP)
