"""A small vision transformer, its patches compressed to one feature vector per camera.

Hu et al. 2023 (IBRL), arXiv 2311.02198, which Ren et al. 2024 (DPPO), arXiv 2409.00588, use on pixels: two strided
convolutions make the patches, one pre-norm layer mixes them, and the spatial embedding reads each channel over all
patches together with the robot's own state.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional

from robopo.errors import ConfigError


@dataclass(frozen=True, slots=True)
class VitConfig:
    """Sizes of the encoder; the defaults are DPPO's, there for pictures of 96 x 96."""

    features: int = 128
    """Numbers per camera."""
    width: int = 128
    """Numbers per patch; divisible by ``heads``."""
    depth: int = 1
    """Transformer layers."""
    heads: int = 4
    """Attention heads of each layer."""
    shared: bool = True
    """One trunk for all cameras (each has its own spatial embedding); false: a trunk each."""
    shift: int = 4
    """Largest random shift while training, pixels; 0: none."""

    def __post_init__(self) -> None:
        check_sizes(self.features, self.shift)
        if self.heads < 1 or self.width < 1 or self.width % self.heads:
            raise ConfigError(f"heads={self.heads}: must divide width={self.width}")
        if self.depth < 1:
            raise ConfigError(f"depth={self.depth}: expected one layer at least")


def check_sizes(features: int, shift: int) -> None:
    """Raise ConfigError for a setting, common to all encoders, that is out of range."""
    if features < 1 or shift < 0:
        raise ConfigError(f"features={features}, shift={shift}: expected 1 or more, and 0 or more")


class VitLayer(nn.Module):
    """x + attention(norm(x)), then x + perceptron(norm(x)); GELU, no dropout."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, patches, width] -> the same."""
        B, P, width = x.shape
        query, key, value = self.qkv(self.norm(x)).view(B, P, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(query, key, value)  # [B, heads, P, width / heads]
        x = x + self.merge(mixed.transpose(1, 2).reshape(B, P, width))
        return x + self.narrow(functional.gelu(self.widen(self.mlp_norm(x))))


class VitTrunk(nn.Module):
    """Convolutions 8 x 8 (stride 4) and 3 x 3 (stride 2), learned positions, transformer layers, a last norm."""

    def __init__(self, config: VitConfig, channels: int, height: int, width: int) -> None:
        super().__init__()
        rows, columns = (((size - 8) // 4 + 1 - 3) // 2 + 1 for size in (height, width))
        if min(rows, columns) < 1:
            raise ConfigError(f"pictures of {height} x {width}: this transformer needs 16 x 16 at least")
        self.patches, self.width = rows * columns, config.width
        self.stem = nn.Sequential(
            nn.Conv2d(channels, config.width, 8, stride=4),
            nn.ReLU(),
            nn.Conv2d(config.width, config.width, 3, stride=2),
        )
        self.positions = nn.Parameter(nn.init.trunc_normal_(torch.empty(self.patches, config.width), std=0.02))
        self.layers = nn.Sequential(*(VitLayer(config.width, config.heads) for _ in range(config.depth)))
        self.norm = nn.LayerNorm(config.width)

    def forward(self, x: Tensor) -> Tensor:
        """[B, channels, height, width] -> [B, patches, width]."""
        return self.norm(self.layers(self.stem(x).flatten(2).mT + self.positions))


class SpatialEmbedding(nn.Module):
    """Each channel's patches and the state -> linear, LayerNorm, ReLU; then a learned weighted sum over the channels.

    The weights begin at 1 / sqrt(channels), where the published ones begin at 1: features of order one, like the state
    that they are put beside.
    """

    def __init__(self, trunk: VitTrunk, low_dim: int, features: int) -> None:
        super().__init__()
        self.project = nn.Sequential(nn.Linear(trunk.patches + low_dim, features), nn.LayerNorm(features), nn.ReLU())
        self.weight = nn.Parameter(torch.randn(trunk.width, features) / trunk.width**0.5)

    def forward(self, patches: Tensor, low: Tensor) -> Tensor:
        """[B, patches, width] and [B, L] -> [B, features]."""
        channels = patches.mT  # [B, width, patches]
        state = low[:, None].expand(-1, channels.shape[1], -1)
        return (self.project(torch.cat([channels, state], dim=2)) * self.weight).sum(1)
