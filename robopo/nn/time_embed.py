"""Embedding of the network's time index."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError


class SinusoidalEmbedding(nn.Module):
    """Map t [N] -> [N, dim]: sines then cosines of t times frequencies falling geometrically from 1 to 1/10000."""

    def __init__(self, dim: int) -> None:
        """dim: even, at least 4."""
        super().__init__()
        if dim < 4 or dim % 2:
            raise ConfigError(f"time_dim={dim}: expected an even number of at least 4")
        half = dim // 2
        frequencies = torch.exp(torch.arange(half, dtype=torch.float64) * (-math.log(10000.0) / (half - 1)))
        self.frequencies: Tensor
        self.register_buffer("frequencies", frequencies.to(torch.get_default_dtype()), persistent=False)

    def forward(self, t: Tensor) -> Tensor:
        """Map t [N] integer or float -> [N, dim]."""
        phase = t.to(self.frequencies.dtype)[:, None] * self.frequencies  # [N, dim / 2]
        return torch.cat([phase.sin(), phase.cos()], dim=-1)


class TimeEmbedding(nn.Sequential):
    """Map t [N] -> [N, dim]: sinusoid, linear to ``hidden``, Mish, linear back to ``dim``."""

    def __init__(self, dim: int, hidden: int) -> None:
        super().__init__(SinusoidalEmbedding(dim), nn.Linear(dim, hidden), nn.Mish(), nn.Linear(hidden, dim))
