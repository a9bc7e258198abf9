"""ResNet-18 with GroupNorm, and the mean positions of its channels as features.

He et al. 2015, arXiv 1512.03385, trained from scratch as in Chi et al. 2023 (Diffusion Policy), arXiv 2303.04137:
GroupNorm instead of BatchNorm, whose running statistics and weight averages don't go together, and a spatial softmax
(Levine et al. 2015, arXiv 1504.00702) instead of average pooling, which would forget where things are.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError
from robopo.nn.vision_vit import check_sizes

STAGES = (1, 2, 4, 8)
"""Channels of the four stages in multiples of the width; two blocks each."""


class Pool(StrEnum):
    """How a map becomes a vector."""

    KEYPOINTS = "keypoints"
    """Spatial softmax: the mean position of each of ``keypoints`` learned maps."""
    MEAN = "mean"
    """Average over the map."""


@dataclass(frozen=True, slots=True)
class ResNetConfig:
    """Sizes of the encoder; the defaults are ResNet-18's."""

    features: int = 64
    """Numbers per camera."""
    width: int = 64
    """Channels of the first stage."""
    group_channels: int = 16
    """Channels per group of a GroupNorm; divides ``width``."""
    pool: Pool = Pool.KEYPOINTS
    """See Pool."""
    keypoints: int = 32
    """Maps whose mean positions are taken."""
    max_pool: bool = False
    """Halve the map once more after the first convolution, as published for 224 x 224; small pictures lose too much."""
    shared: bool = False
    """One trunk for all cameras; false: a trunk each, as published."""
    shift: int = 4
    """Largest random shift while training, pixels; 0: none."""

    def __post_init__(self) -> None:
        check_sizes(self.features, self.shift)
        if self.group_channels < 1 or self.width < 1 or self.width % self.group_channels:
            raise ConfigError(f"group_channels={self.group_channels}: must divide width={self.width}")
        if self.keypoints < 1:
            raise ConfigError(f"keypoints={self.keypoints}: expected 1 or more")


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions with a residual around them."""

    def __init__(self, fan_in: int, fan_out: int, stride: int, group_channels: int) -> None:
        super().__init__()
        groups = fan_out // group_channels
        self.body = nn.Sequential(
            nn.Conv2d(fan_in, fan_out, 3, stride=stride, padding=1, bias=False),
            nn.GroupNorm(groups, fan_out),
            nn.ReLU(),
            nn.Conv2d(fan_out, fan_out, 3, padding=1, bias=False),
            nn.GroupNorm(groups, fan_out),
        )
        self.skip = nn.Identity()
        if stride > 1 or fan_in != fan_out:
            self.skip = nn.Sequential(
                nn.Conv2d(fan_in, fan_out, 1, stride=stride, bias=False), nn.GroupNorm(groups, fan_out)
            )

    def forward(self, x: Tensor) -> Tensor:
        """[B, fan_in, h, w] -> [B, fan_out, h / stride, w / stride]."""
        return (self.body(x) + self.skip(x)).relu()


class ResNetTrunk(nn.Module):
    """A 7 x 7 convolution and eight blocks: [B, channels, height, width] -> [B, 8 * width, h, w]."""

    def __init__(self, config: ResNetConfig, channels: int) -> None:
        super().__init__()
        width, per_group = config.width, config.group_channels
        stem: list[nn.Module] = [
            nn.Conv2d(channels, width, 7, stride=2, padding=3, bias=False),
            nn.GroupNorm(width // per_group, width),
            nn.ReLU(),
        ]
        if config.max_pool:
            stem.append(nn.MaxPool2d(3, stride=2, padding=1))
        blocks: list[nn.Module] = []
        before = width
        for n, multiple in enumerate(STAGES):
            for stride in (1 if n == 0 else 2, 1):
                blocks.append(BasicBlock(before, multiple * width, stride, per_group))
                before = multiple * width
        self.channels = before
        self.layers = nn.Sequential(*stem, *blocks)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] -> [B, 8 * width, h, w]."""
        return self.layers(x)


class PoolHead(nn.Module):
    """A map [B, C, h, w] -> [B, features]; the state beside it says nothing here."""

    def __init__(self, trunk: ResNetTrunk, config: ResNetConfig) -> None:
        super().__init__()
        points = config.pool is Pool.KEYPOINTS
        self.maps = nn.Conv2d(trunk.channels, config.keypoints, 1) if points else None
        self.output = nn.Linear(2 * config.keypoints if points else trunk.channels, config.features)

    def forward(self, x: Tensor, low: Tensor) -> Tensor:
        """[B, C, h, w] -> [B, features]."""
        del low
        return self.output(x.mean((2, 3)) if self.maps is None else mean_positions(self.maps(x)))


def mean_positions(maps: Tensor) -> Tensor:
    """Spatial softmax: [B, C, h, w] -> the mean x and y of each map under its softmax, in [-1, 1], [B, 2 C]."""
    height, width = maps.shape[2:]
    share = maps.flatten(2).softmax(-1).view_as(maps)
    across = torch.linspace(-1.0, 1.0, width, device=maps.device, dtype=maps.dtype)
    down = torch.linspace(-1.0, 1.0, height, device=maps.device, dtype=maps.dtype)
    return torch.cat([(share.sum(2) * across).sum(-1), (share.sum(3) * down).sum(-1)], dim=1)
