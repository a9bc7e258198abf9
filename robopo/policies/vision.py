"""A policy's picture encoder: where it sits, what it adds to the condition, and how config.json describes it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from robopo.errors import ConfigError
from robopo.nn.vision import vision_of
from robopo.nn.vision_build import VisionNetConfig, build_vision
from robopo.nn.vision_resnet import ResNetConfig
from robopo.nn.vision_vit import VitConfig
from robopo.policies.base import PolicySpec
from robopo.policies.config_json import plain, restore

KINDS: Mapping[str, type[VisionNetConfig]] = {"vit": VitConfig, "resnet": ResNetConfig}
"""Values of ``vision.kind`` in config.json."""


def condition_dim(spec: PolicySpec, vision: VisionNetConfig | None) -> int:
    """C + F: numbers, and the features of every camera. ConfigError where pictures have no encoder, or the reverse."""
    if (vision is None) != (not spec.images):
        have, lacks = ("an encoder", "pictures") if vision is not None else ("pictures", "an encoder")
        raise ConfigError(
            f"the policy has {have} but no {lacks}: pictures need policy.vision (policy=diffusion_vit), and a "
            "simulator that shows them (sim.cameras=[front])"
        )
    return spec.cond_dim + (0 if vision is None else len(spec.images) * vision.features)


def attached[Net: nn.Module](net: Net, spec: PolicySpec, vision: VisionNetConfig | None) -> Net:
    """``net`` with the encoder as its submodule ``vision``; as it was for a policy without pictures."""
    if vision is not None:
        encoder = build_vision(vision, spec.images, obs_steps=spec.obs_steps, low_dim=spec.cond_dim)
        net.add_module("vision", encoder)
    return net


def describe_vision(net: nn.Module) -> dict[str, Any]:
    """JSON values under ``vision``: kind and settings; nothing for a policy without pictures."""
    vision = vision_of(net)
    if vision is None:
        return {}
    kind = next(name for name, cls in KINDS.items() if isinstance(vision.config, cls))
    return {"vision": {"kind": kind, **plain(vision.config)}}


def restore_vision(config: Mapping[str, Any]) -> VisionNetConfig | None:
    """Inverse of ``describe_vision``; None where ``config`` has no such entry."""
    if "vision" not in config:
        return None
    values = dict(config["vision"])
    return restore(KINDS[values.pop("kind")], values)
