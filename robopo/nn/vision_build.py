"""Picture encoders from configurations."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from robopo.nn.vision import Picture, VisionEncoder
from robopo.nn.vision_resnet import PoolHead, ResNetConfig, ResNetTrunk
from robopo.nn.vision_vit import SpatialEmbedding, VitConfig, VitTrunk

type VisionNetConfig = VitConfig | ResNetConfig


def build_vision(
    config: VisionNetConfig, images: Mapping[str, Picture], *, obs_steps: int, low_dim: int
) -> VisionEncoder:
    """The encoder that ``config`` describes, with fresh weights; arguments as of VisionEncoder."""

    def trunk(channels: int, height: int, width: int) -> nn.Module:
        if isinstance(config, VitConfig):
            return VitTrunk(config, channels, height, width)
        return ResNetTrunk(config, channels)

    def head(trunk: nn.Module, low_dim: int) -> nn.Module:
        if isinstance(config, VitConfig) and isinstance(trunk, VitTrunk):
            return SpatialEmbedding(trunk, low_dim, config.features)
        if isinstance(config, ResNetConfig) and isinstance(trunk, ResNetTrunk):
            return PoolHead(trunk, config)
        raise TypeError(f"{type(trunk).__name__} is no trunk of a {type(config).__name__}")

    return VisionEncoder(config, images, obs_steps=obs_steps, low_dim=low_dim, make_trunk=trunk, make_head=head)
