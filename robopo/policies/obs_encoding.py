"""From named observations to the vector that a network is conditioned on."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from robopo.errors import ShapeError, did_you_mean
from robopo.policies.base import PolicySpec
from robopo.types import Observation

ACTION = "action"
"""Key of the action's statistics in a normaliser."""


class UnitScaling(Protocol):
    """Between physical units and the learner's."""

    def apply(self, key: str, x: Tensor) -> Tensor:
        """Physical [..., D] -> normalised [..., D]."""
        ...

    def invert(self, key: str, y: Tensor) -> Tensor:
        """Normalised [..., D] -> physical [..., D]."""
        ...


def encode_obs(spec: PolicySpec, scaling: UnitScaling, obs: Observation, clip: float | None) -> Tensor:
    """Observation entries [B, To, D] -> condition [B, C]: normalised, keys in sorted order, then flattened in time.

    clip: bound on the normalised numbers; None: no bound. Raises ShapeError naming the entry that is missing or has
    another shape.
    """
    rows: list[Tensor] = []
    for key, size in spec.obs.items():
        x = obs.get(key)
        if x is None:
            raise ShapeError(f"observation {key!r} is missing{did_you_mean(key, obs)}")
        if x.ndim != 3 or x.shape[1:] != (spec.obs_steps, size):
            raise ShapeError(
                f"observation {key!r} is {list(x.shape)}, expected [B, {spec.obs_steps}, {size}] "
                "(batch, obs_steps, size)"
            )
        rows.append(scaling.apply(key, x))
    cond = torch.cat(rows, dim=-1).flatten(1)
    return cond if clip is None else cond.clamp(-clip, clip)
