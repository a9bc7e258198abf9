"""Diffusion transformer over the rows of a chunk, conditioned by adaptive layer norms that begin at zero (adaLN-Zero).

Peebles & Xie 2023 (DiT), arXiv 2212.09748, section 3.2: every block gets a shift, a scale and a gate for its attention
and for its perceptron, all regressed from (time, condition); the gates and the output begin at zero, so a new network
answers 0 and each block is the identity. One token per row of the chunk.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from robopo.errors import ConfigError
from robopo.nn.activation import Activation
from robopo.nn.denoiser import Denoiser
from robopo.nn.mlp import plain_mlp
from robopo.nn.time_embed import SinusoidalEmbedding, TimeEmbedding

NORM_EPS = 1e-6


@dataclass(frozen=True, slots=True)
class DiTConfig:
    """Sizes of a DiT. The defaults suit chunks of 4 to 16 rows of a low-dimensional task."""

    width: int = 256
    """Numbers per token; even, at least 4, divisible by ``heads``."""
    depth: int = 4
    """Blocks."""
    heads: int = 4
    """Attention heads of each block."""
    mlp_ratio: int = 4
    """Hidden width of each block's perceptron in multiples of ``width``."""
    time_dim: int = 32
    """Size of the time embedding; even, at least 4."""
    state_hidden: tuple[int, ...] = ()
    """Widths of a small MLP that encodes the condition first; empty: the condition enters as it is."""

    def __post_init__(self) -> None:
        if self.width < 4 or self.width % 2:
            raise ConfigError(f"width={self.width}: expected an even number of at least 4")
        if self.heads < 1 or self.width % self.heads:
            raise ConfigError(f"heads={self.heads}: must divide width={self.width}")
        if self.depth < 1:
            raise ConfigError(f"depth={self.depth}: expected one block at least")
        if self.mlp_ratio < 1:
            raise ConfigError(f"mlp_ratio={self.mlp_ratio}: must be positive")
        if self.time_dim < 4 or self.time_dim % 2:
            raise ConfigError(f"time_dim={self.time_dim}: expected an even number of at least 4")
        if any(width < 1 for width in self.state_hidden):
            raise ConfigError(f"state_hidden={tuple(self.state_hidden)}: widths must be positive")


class DiTBlock(nn.Module):
    """Attention and a perceptron, each between a modulated LayerNorm and a gate, with a residual around it."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        width, hidden = config.width, config.width * config.mlp_ratio
        self.heads = config.heads
        self.modulation = nn.Linear(width, 6 * width)
        self.qkv, self.merge = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def modulate(self, features: Tensor) -> tuple[Tensor, ...]:
        """[..., width] -> shift, scale, gate of the attention and of the perceptron, each [..., 1, width]."""
        return self.modulation(features).unsqueeze(-2).chunk(6, dim=-1)

    def forward(self, h: Tensor, modulation: Sequence[Tensor]) -> Tensor:
        """Map tokens h [B, H, width] -> [B, H, width]."""
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation
        h = torch.addcmul(h, gate, self._attend(_modulated_norm(h, shift, scale)))
        inner = functional.gelu(self.widen(_modulated_norm(h, mlp_shift, mlp_scale)), approximate="tanh")
        return torch.addcmul(h, mlp_gate, self.narrow(inner))

    def _attend(self, h: Tensor) -> Tensor:
        B, H, width = h.shape
        qkv = self.qkv(h).view(B, H, 3, self.heads, width // self.heads)
        query, key, value = qkv.permute(2, 0, 3, 1, 4)  # each [B, heads, H, width / heads]
        out = functional.scaled_dot_product_attention(query, key, value)
        return self.merge(out.transpose(1, 2).reshape(B, H, width))


class DiT(Denoiser):
    """Transformer over the rows of the chunk; time and condition enter through the modulation of every block."""

    def __init__(self, config: DiTConfig, *, horizon: int, action_dim: int, cond_dim: int) -> None:
        """horizon: H, action_dim: A, cond_dim: C."""
        super().__init__()
        self.config = config
        self.horizon, self.action_dim, self.cond_dim = horizon, action_dim, cond_dim
        width = config.width
        self.time_embedding = TimeEmbedding(config.time_dim, 2 * config.time_dim)
        self.of_time = nn.Linear(config.time_dim, width)
        self.of_cond = plain_mlp((cond_dim, *config.state_hidden, width), Activation.MISH)
        self.input = nn.Linear(action_dim, width)
        self.blocks = nn.ModuleList(DiTBlock(config) for _ in range(config.depth))
        self.modulation = nn.Linear(width, 2 * width)
        self.output = nn.Linear(width, action_dim)
        self.positions: Tensor
        # Fixed sines and cosines of the row number, as in the paper.
        self.register_buffer("positions", SinusoidalEmbedding(width)(torch.arange(horizon)), persistent=False)
        self._initialise()

    def forward(self, x: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """Map x [B, H, A], t [B] (a level's index, or a time scaled to such numbers), cond [B, C] -> [B, H, A]."""
        features = functional.silu(self.of_time(self.time_embedding(t)) + self.of_cond(cond))
        return self._run(x, [block.modulate(features) for block in self._blocks()], self._modulate(features))

    @torch.no_grad()
    def begin_chain(self, cond: Tensor, t: Tensor) -> Any:
        """All modulations of the chain at once: they depend on the level and the condition, not on x."""
        of_time = self.of_time(self.time_embedding(t))  # [S, width]
        features = functional.silu(of_time[:, None] + self.of_cond(cond))  # [S, B, width]
        per_block = [zip(*map(torch.unbind, block.modulate(features)), strict=True) for block in self._blocks()]
        last = zip(*map(torch.unbind, self._modulate(features)), strict=True)
        return list(zip(zip(*per_block, strict=True), last, strict=True))

    def chain_step(self, x: Tensor, context: Any, k: int) -> Tensor:
        """Map x [B, H, A] at level k of the chain -> [B, H, A]."""
        return self._run(x, *context[k])

    def _run(self, x: Tensor, modulations: Sequence[Sequence[Tensor]], last: Sequence[Tensor]) -> Tensor:
        h = self.input(x) + self.positions
        for block, modulation in zip(self._blocks(), modulations, strict=True):
            h = block(h, modulation)
        return self.output(_modulated_norm(h, *last))

    def _modulate(self, features: Tensor) -> tuple[Tensor, ...]:
        """[..., width] -> shift and scale before the output, each [..., 1, width]."""
        return self.modulation(features).unsqueeze(-2).chunk(2, dim=-1)

    def _blocks(self) -> list[DiTBlock]:
        return cast("list[DiTBlock]", list(self.blocks))

    def _initialise(self) -> None:
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
        for linear in (self.output, self.modulation, *(block.modulation for block in self._blocks())):
            nn.init.zeros_(linear.weight)


def _modulated_norm(h: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    """LayerNorm without weights of its own, then (1 + scale) h + shift."""
    h = functional.layer_norm(h, h.shape[-1:], eps=NORM_EPS)
    return torch.addcmul(h + shift, h, scale)
