"""Residual perceptrons: the diffusion head of DPPO's state experiments, and its critic's body.

Ren et al. 2024, arXiv 2409.00588, appendix on network architectures.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from robopo.errors import ConfigError
from robopo.nn.activation import Activation
from robopo.nn.denoiser import Denoiser
from robopo.nn.time_embed import TimeEmbedding


class ResidualBlock(nn.Module):
    """x + W2 act(W1 act(x)), both of one width; a LayerNorm before each activation if asked for."""

    def __init__(self, width: int, activation: Activation, *, layer_norm: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width), nn.Linear(width, width)
        self.activation = activation.build()
        self.first_norm = nn.LayerNorm(width, eps=1e-6) if layer_norm else None
        self.second_norm = nn.LayerNorm(width, eps=1e-6) if layer_norm else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., width] -> [..., width]."""
        h = x if self.first_norm is None else self.first_norm(x)
        h = self.first(self.activation(h))
        h = h if self.second_norm is None else self.second_norm(h)
        return x + self.second(self.activation(h))

    def weights(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], nn.Module | None, nn.Module | None]:
        """Weight and bias of both linears, detached, and the norms before them."""
        first, second = ((linear.weight.detach(), linear.bias.detach()) for linear in (self.first, self.second))
        return first, second, self.first_norm, self.second_norm


class ResidualMLP(nn.Module):
    """Input linear, (m - 1) / 2 residual blocks of two linears, output linear; ``hidden`` has m equal entries, m odd.

    The count of ``hidden`` follows the published configurations: (512, 512, 512) is one block.
    """

    def __init__(
        self,
        in_dim: int,
        out_dim: int,
        hidden: Sequence[int],
        *,
        activation: Activation = Activation.MISH,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        check_hidden(hidden)
        width = hidden[0]
        self.input = nn.Linear(in_dim, width)
        self.blocks = nn.Sequential(
            *(ResidualBlock(width, activation, layer_norm=layer_norm) for _ in range((len(hidden) - 1) // 2))
        )
        self.output = nn.Linear(width, out_dim)

    def forward(self, x: Tensor) -> Tensor:
        """[..., in_dim] -> [..., out_dim]."""
        return self.output(self.blocks(self.input(x)))


def check_hidden(hidden: Sequence[int]) -> None:
    """Raise ConfigError unless ``hidden`` describes a ResidualMLP."""
    if len(hidden) < 3 or len(hidden) % 2 == 0 or len(set(hidden)) != 1 or hidden[0] < 1:
        raise ConfigError(
            f"hidden={tuple(hidden)}: expected an odd number (3 or more) of equal widths, for example (512, 512, 512)"
        )


def plain_mlp(sizes: Sequence[int], activation: Activation) -> nn.Sequential:
    """Linears between consecutive ``sizes`` with the activation between them, none after the last."""
    layers: list[nn.Module] = []
    for n, (fan_in, fan_out) in enumerate(pairwise(sizes)):
        if n:
            layers.append(activation.build())
        layers.append(nn.Linear(fan_in, fan_out))
    return nn.Sequential(*layers)


@dataclass(frozen=True, slots=True)
class DiffusionMLPConfig:
    """Sizes of a DiffusionMLP. Published: Can and Lift as the defaults; Square, Transport 3 x 1024, time_dim 32."""

    hidden: tuple[int, ...] = (512, 512, 512)
    """Widths of the residual MLP: an odd number of equal entries, three at least."""
    time_dim: int = 16
    """Size of the time embedding; even, at least 4."""
    state_hidden: tuple[int, ...] = ()
    """Widths of a small MLP that encodes the condition first; empty: the condition enters as it is."""
    activation: Activation = Activation.MISH
    """Nonlinearity of the residual MLP and the encoder."""
    layer_norm: bool = False
    """A LayerNorm before each activation of the residual blocks."""

    def __post_init__(self) -> None:
        check_hidden(self.hidden)
        if self.time_dim < 4 or self.time_dim % 2:
            raise ConfigError(f"time_dim={self.time_dim}: expected an even number of at least 4")
        if any(width < 1 for width in self.state_hidden):
            raise ConfigError(f"state_hidden={tuple(self.state_hidden)}: widths must be positive")


class DiffusionMLP(Denoiser):
    """Residual MLP over (flattened chunk, time embedding, condition or its encoding)."""

    def __init__(self, config: DiffusionMLPConfig, *, horizon: int, action_dim: int, cond_dim: int) -> None:
        """horizon: H, action_dim: A, cond_dim: C."""
        super().__init__()
        self.config = config
        self.horizon, self.action_dim, self.cond_dim = horizon, action_dim, cond_dim
        self.time_embedding = TimeEmbedding(config.time_dim, 2 * config.time_dim)
        encoded_dim = config.state_hidden[-1] if config.state_hidden else cond_dim
        self.encoder = plain_mlp((cond_dim, *config.state_hidden), config.activation) if config.state_hidden else None
        self.body = ResidualMLP(
            horizon * action_dim + config.time_dim + encoded_dim,
            horizon * action_dim,
            config.hidden,
            activation=config.activation,
            layer_norm=config.layer_norm,
        )

    def forward(self, x: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """Map x [B, H, A], t [B] long, cond [B, C] -> [B, H, A]."""
        encoded = cond if self.encoder is None else self.encoder(cond)
        features = torch.cat([x.flatten(1), self.time_embedding(t), encoded], dim=-1)
        return self.body(features).view_as(x)

    @torch.no_grad()
    def begin_chain(self, cond: Tensor, t: Tensor) -> Any:
        """The input linear is W_x x + (W_t time + W_c cond + b); the bracket [S, B, hidden] is known in advance."""
        encoded = cond if self.encoder is None else self.encoder(cond)
        chunk = self.horizon * self.action_dim
        weight = self.body.input.weight
        w_time, w_cond = weight[:, chunk : chunk + self.config.time_dim], weight[:, chunk + self.config.time_dim :]
        of_time = torch.addmm(self.body.input.bias, self.time_embedding(t), w_time.T)  # [S, hidden]
        offset = of_time[:, None] + encoded @ w_cond.T  # [S, B, hidden]
        # Calling weights directly, not through modules, halves the time of a step of one row.
        blocks = [cast("ResidualBlock", block).weights() for block in self.body.blocks]
        output = self.body.output
        return _Chain(
            weight[:, :chunk].detach().T,
            offset.unbind(0),
            blocks,
            self.config.activation.inference(),
            (output.weight.detach(), output.bias.detach()),
        )

    def chain_step(self, x: Tensor, context: Any, k: int) -> Tensor:
        """Map x [B, H, A] at level k of the chain -> [B, H, A]."""
        w_x, offset, blocks, activate, output = cast("_Chain", context)
        h = torch.addmm(offset[k], x.flatten(1), w_x)
        for first, second, first_norm, second_norm in blocks:
            inner = h if first_norm is None else first_norm(h)
            inner = functional.linear(activate(inner), *first)
            inner = inner if second_norm is None else second_norm(inner)
            h = functional.linear(activate(inner), *second).add_(h)
        return functional.linear(h, *output).view_as(x)


class _Chain(NamedTuple):
    """What a DiffusionMLP knows before the first step of a chain; all tensors detached."""

    w_x: Tensor
    offset: Sequence[Tensor]
    blocks: list[tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor], nn.Module | None, nn.Module | None]]
    activate: Callable[[Tensor], Tensor]
    output: tuple[Tensor, Tensor]
