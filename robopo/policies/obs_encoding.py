"""From named observations to the vector that a network is conditioned on."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor, nn

from robopo.errors import ShapeError, did_you_mean
from robopo.nn.augment import random_shift
from robopo.nn.vision import VisionEncoder, vision_of
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


def encode_obs(
    spec: PolicySpec, scaling: UnitScaling, obs: Observation, clip: float | None, net: nn.Module | None = None
) -> Tensor:
    """Observation entries [B, To, D] -> condition [B, C]: normalised, keys in sorted order, then flattened in time.

    clip: bound on the normalised numbers; None: no bound. net: the network whose picture encoder, if it has one, adds
    its F features: [B, C + F]. Raises ShapeError naming the entry that is missing or has another shape.
    """
    vision = None if net is None else vision_of(net)
    if vision is None:
        return _numbers(spec, scaling, obs, clip)
    pictures = _pictures(spec, obs)
    weight = next(vision.parameters())
    low = _numbers(spec, scaling, obs, clip) if spec.obs else weight.new_zeros(pictures[0].shape[0], 0)
    return torch.cat([low, vision(pictures, low)], dim=1)


def _pictures(spec: PolicySpec, obs: Observation) -> list[Tensor]:
    found: list[Tensor] = []
    for key, shape in spec.images.items():
        x = obs.get(key)
        if x is None:
            raise ShapeError(f"picture {key!r} is missing{did_you_mean(key, obs)}")
        if x.dtype != torch.uint8 or x.ndim != 5 or x.shape[1:] != (spec.obs_steps, *shape):
            raise ShapeError(
                f"picture {key!r} is {x.dtype} {list(x.shape)}, expected torch.uint8 [B, {spec.obs_steps}, "
                f"{', '.join(map(str, shape))}] (batch, obs_steps, height, width, channels)"
            )
        found.append(x)
    return found


def shifted(spec: PolicySpec, obs: Observation, net: nn.Module, generator: torch.Generator | None) -> Observation:
    """The same observations, each picture moved by up to the ``shift`` of the network's encoder: for training alone.

    Draws nothing for a policy without pictures. The pictures end up on the encoder's device.
    """
    vision = vision_of(net)
    if vision is None or vision.config.shift == 0:
        return obs
    pictures = dict(zip(spec.images, _pictures(spec, obs), strict=True))
    return {**obs, **shift_pictures(vision, pictures, generator)}


def shift_pictures(
    vision: VisionEncoder, pictures: Observation, generator: torch.Generator | None
) -> dict[str, Tensor]:
    """Pictures [B, To, height, width, 3] -> moved ones, on the encoder's device."""
    device = next(vision.parameters()).device
    return {
        key: random_shift(picture.to(device, non_blocking=True), vision.config.shift, generator)
        for key, picture in pictures.items()
    }


def _numbers(spec: PolicySpec, scaling: UnitScaling, obs: Observation, clip: float | None) -> Tensor:
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
