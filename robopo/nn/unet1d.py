"""One-dimensional convolutional U-Net over the rows of a chunk, conditioned by FiLM.

Chi et al. 2023 (Diffusion Policy), arXiv 2303.04137; sizes of Ren et al. 2024, arXiv 2409.00588.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from robopo.errors import ConfigError
from robopo.nn.activation import Activation, fast_mish
from robopo.nn.denoiser import Denoiser
from robopo.nn.fixed_length import fixed_length
from robopo.nn.mlp import plain_mlp
from robopo.nn.time_embed import TimeEmbedding


@dataclass(frozen=True, slots=True)
class UNet1DConfig:
    """Sizes of a UNet1D. Published: Robomimic as the defaults; furniture has mults (1, 2, 4)."""

    dim: int = 64
    """Channels of the first level."""
    mults: tuple[int, ...] = (1, 2)
    """Channels of each level in multiples of ``dim``; the chunk is halved between levels."""
    kernel_size: int = 5
    """Width of the convolutions; odd."""
    groups: int = 8
    """Groups of each GroupNorm; divides every level's channels."""
    time_dim: int = 16
    """Size of the time embedding; even, at least 4."""
    state_hidden: tuple[int, ...] = ()
    """Widths of a small MLP that encodes the condition first; empty: the condition enters as it is."""
    activation: Activation = Activation.MISH
    """Nonlinearity of all blocks."""
    norm_eps: float = 1e-5
    """GroupNorm's epsilon. Some published furniture checkpoints were trained with 1e-4."""

    def __post_init__(self) -> None:
        if self.dim < 1 or not self.mults or any(m < 1 for m in self.mults):
            raise ConfigError(
                f"dim={self.dim}, mults={tuple(self.mults)}: expected positive numbers, one mult at least"
            )
        if self.kernel_size < 1 or self.kernel_size % 2 == 0:
            raise ConfigError(f"kernel_size={self.kernel_size}: expected an odd number")
        if self.groups < 1 or any(self.dim * m % self.groups for m in self.mults):
            raise ConfigError(f"groups={self.groups}: must divide the channels {[self.dim * m for m in self.mults]}")
        if self.time_dim < 4 or self.time_dim % 2:
            raise ConfigError(f"time_dim={self.time_dim}: expected an even number of at least 4")
        if self.norm_eps <= 0.0:
            raise ConfigError(f"norm_eps={self.norm_eps}: must be positive")


type Map = Callable[[Tensor], Tensor]


class Film(NamedTuple):
    """Per-channel affine map that carries time and condition, each [..., C, 1]."""

    scale: Tensor
    bias: Tensor


class ConvBlock(nn.Module):
    """Convolution, GroupNorm, activation; keeps the length."""

    def __init__(self, in_channels: int, out_channels: int, config: UNet1DConfig) -> None:
        super().__init__()
        kernel = config.kernel_size
        self.conv = nn.Conv1d(in_channels, out_channels, kernel, padding=kernel // 2)
        self.norm = nn.GroupNorm(config.groups, out_channels, eps=config.norm_eps)
        self.activation = config.activation.build()

    def forward(self, x: Tensor) -> Tensor:
        """[B, C_in, L] -> [B, C_out, L]."""
        return self.activation(self.norm(self.conv(x)))

    def at_length(self, length: int) -> Map:
        """The block for inputs [B, C_in, length], with the present weights and without a graph."""
        norm, conv = self.norm, fixed_length(self.conv, length)
        groups, weight, bias, eps = norm.num_groups, norm.weight, norm.bias, norm.eps
        activate = fast_mish if isinstance(self.activation, nn.Mish) else self.activation

        def apply(x: Tensor) -> Tensor:
            return activate(functional.group_norm(conv(x), groups, weight, bias, eps))

        return apply


class FilmBlock(nn.Module):
    """Two ConvBlocks with scale * h + bias between them and a residual around; the FiLM encoder has three linears."""

    def __init__(self, in_channels: int, out_channels: int, film_dim: int, config: UNet1DConfig) -> None:
        super().__init__()
        self.first = ConvBlock(in_channels, out_channels, config)
        self.second = ConvBlock(out_channels, out_channels, config)
        wide = 2 * out_channels
        self.film = plain_mlp((film_dim, wide, wide, wide), config.activation)
        self.skip = nn.Identity() if in_channels == out_channels else nn.Conv1d(in_channels, out_channels, 1)

    def encode_film(self, features: Tensor, activate: Map | None = None) -> Film:
        """[..., film_dim] -> scale and bias [..., C_out, 1]. activate: stands in for the activation."""
        for layer in self.film:
            features = layer(features) if activate is None or isinstance(layer, nn.Linear) else activate(features)
        scale, bias = features.unsqueeze(-1).chunk(2, dim=-2)
        return Film(scale, bias)

    def forward(self, x: Tensor, film: Film) -> Tensor:
        """Map x [B, C_in, L] -> [B, C_out, L]."""
        return _film_block(x, film, self.first, self.second, self.skip)

    def at_length(self, length: int) -> Callable[[Tensor, Film], Tensor]:
        """The block for inputs [B, C_in, length], with the present weights and without a graph."""
        skip = fixed_length(self.skip, length) if isinstance(self.skip, nn.Conv1d) else _same
        first, second = self.first.at_length(length), self.second.at_length(length)
        return partial(_film_block, first=first, second=second, skip=skip)


def _film_block(x: Tensor, film: Film, first: Map, second: Map, skip: Map) -> Tensor:
    return second(torch.addcmul(film.bias, film.scale, first(x))) + skip(x)


def _same(x: Tensor) -> Tensor:
    return x


class Layers(NamedTuple):
    """The layers in the order of their use: two film blocks per level down, two in the middle, two per level up."""

    blocks: Sequence[Callable[[Tensor, Film], Tensor]]
    shrink: Sequence[Map]
    grow: Sequence[Map]
    head: Map


class UNet1D(Denoiser):
    """U-Net over [A channels, H rows]; H must be divisible by 2 ** (levels - 1)."""

    def __init__(self, config: UNet1DConfig, *, horizon: int, action_dim: int, cond_dim: int) -> None:
        """horizon: H, action_dim: A, cond_dim: C."""
        super().__init__()
        factor = 2 ** (len(config.mults) - 1)
        if horizon % factor:
            raise ConfigError(f"horizon={horizon}: must be divisible by {factor} with mults={tuple(config.mults)}")
        self.config = config
        self.horizon, self.action_dim, self.cond_dim = horizon, action_dim, cond_dim
        self.time_embedding = TimeEmbedding(config.time_dim, 4 * config.time_dim)
        self.encoder = plain_mlp((cond_dim, *config.state_hidden), config.activation) if config.state_hidden else None
        film_dim = config.time_dim + (config.state_hidden[-1] if config.state_hidden else cond_dim)
        widths = [config.dim * m for m in config.mults]
        climbs = list(pairwise(reversed(widths)))
        fans = [fan for low, high in pairwise([action_dim, *widths]) for fan in ((low, high), (high, high))]
        fans += [(widths[-1], widths[-1])] * 2
        fans += [fan for high, low in climbs for fan in ((2 * high, low), (low, low))]  # the skip doubles the input
        self.blocks = nn.ModuleList(FilmBlock(fan_in, fan_out, film_dim, config) for fan_in, fan_out in fans)
        self.shrink = nn.ModuleList(nn.Conv1d(w, w, 3, stride=2, padding=1) for w in widths[:-1])
        self.grow = nn.ModuleList(nn.ConvTranspose1d(w, w, 4, stride=2, padding=1) for _, w in climbs)
        self.head = nn.Sequential(ConvBlock(widths[0], widths[0], config), nn.Conv1d(widths[0], action_dim, 1))
        self._convs = [m for m in self.modules() if isinstance(m, nn.Conv1d | nn.ConvTranspose1d)]
        self._frozen_layers: tuple[list[tuple[int, int]], Layers] | None = None

    def forward(self, x: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """Map x [B, H, A], t [B] long, cond [B, C] -> [B, H, A]."""
        encoded = cond if self.encoder is None else self.encoder(cond)
        features = torch.cat([self.time_embedding(t), encoded], dim=-1)
        blocks = self._blocks()
        layers = Layers(blocks, [*self.shrink], [*self.grow], self.head)
        return _run(x, layers, [block.encode_film(features) for block in blocks])

    @torch.no_grad()
    def begin_chain(self, cond: Tensor, t: Tensor) -> Any:
        """All FiLM maps of the chain at once (they depend on the level and the condition, not on x), and the layers."""
        encoded = cond if self.encoder is None else self.encoder(cond)
        B, S = encoded.shape[0], t.shape[0]
        time = self.time_embedding(t)[:, None].expand(-1, B, -1)
        features = torch.cat([time, encoded.expand(S, -1, -1)], dim=-1)  # [S, B, film_dim]
        activate = self.config.activation.inference()
        films = [
            [Film(*pair) for pair in zip(*map(torch.unbind, block.encode_film(features, activate)), strict=True)]
            for block in self._blocks()
        ]
        return self._inference_layers(), list(zip(*films, strict=True))

    def chain_step(self, x: Tensor, context: Any, k: int) -> Tensor:
        """Map x [B, H, A] at level k of the chain -> [B, H, A]."""
        layers, films = context
        return _run(x, layers, films[k])

    def _blocks(self) -> list[FilmBlock]:
        return cast("list[FilmBlock]", list(self.blocks))

    def _inference_layers(self) -> Layers:
        """Fixed-length layers. Kept between chains only while the weights ask for no gradient: others may change."""
        weights = [conv.weight for conv in self._convs] + [cast("Tensor", conv.bias) for conv in self._convs]
        if any(weight.requires_grad for weight in weights):
            return self._build_layers()
        # In-place changes raise the version, moves and replacements change the address.
        key = [(weight.data_ptr(), weight._version) for weight in weights]  # noqa: SLF001  # no public name in torch
        if self._frozen_layers is None or self._frozen_layers[0] != key:
            self._frozen_layers = (key, self._build_layers())
        return self._frozen_layers[1]

    def _build_layers(self) -> Layers:
        levels = len(self.config.mults)
        lengths = [self.horizon // 2**n for n in range(levels)]
        upward = list(reversed(lengths))[:-1]
        per_block = [length for level in (*lengths, lengths[-1], *upward) for length in (level, level)]
        first, last = cast("tuple[ConvBlock, nn.Conv1d]", tuple(self.head))
        closing, output = first.at_length(self.horizon), fixed_length(last, self.horizon)
        return Layers(
            [block.at_length(length) for block, length in zip(self._blocks(), per_block, strict=True)],
            [fixed_length(cast("nn.Conv1d", c), n) for c, n in zip(self.shrink, lengths[:-1], strict=True)],
            [fixed_length(cast("nn.ConvTranspose1d", c), n) for c, n in zip(self.grow, upward, strict=True)],
            lambda x: output(closing(x)),
        )


def _run(x: Tensor, layers: Layers, films: Sequence[Film]) -> Tensor:
    """Map x [B, H, A] -> [B, H, A]: down, middle, up with the skips, head. ``films``: one per block."""
    steps = zip(layers.blocks, films, strict=True)

    def two_blocks(h: Tensor) -> Tensor:
        for _ in range(2):
            block, film = next(steps)
            h = block(h, film)
        return h

    h = x.transpose(1, 2)  # [B, A, H]
    skips: list[Tensor] = []
    for shrink in layers.shrink:
        h = two_blocks(h)
        skips.append(h)
        h = shrink(h)
    h = two_blocks(h)
    skips.append(h)
    h = two_blocks(h)
    for grow in layers.grow:
        h = grow(two_blocks(torch.cat([h, skips.pop()], dim=1)))
    return layers.head(h).transpose(1, 2)
