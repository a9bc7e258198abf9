"""Perceptrons whose output is a distribution over chunks: one Gaussian, or a mixture of Gaussians.

Ren et al. 2024, arXiv 2409.00588, baselines "Gaussian" and "GMM": a residual perceptron gives the means, and the
variances are parameters of their own, the same in every state.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError
from robopo.nn.activation import Activation
from robopo.nn.mlp import ResidualMLP, check_hidden, plain_mlp


@dataclass(frozen=True, slots=True)
class GaussianMLPConfig:
    """Sizes of a GaussianMLP or a MixtureMLP, and the range of its standard deviations.

    Defaults: fine-tuning of Robomimic states (published). From scratch: plain, (64, 64), tanh, output_gain .01,
    initial_std 1, min_std .01, max_std 10.
    """

    hidden: tuple[int, ...] = (512, 512, 512)
    """Widths. Residual: an odd number of equal entries, three at least."""
    residual: bool = True
    """Residual blocks; false: a plain perceptron."""
    activation: Activation = Activation.MISH
    """Nonlinearity."""
    layer_norm: bool = False
    """A LayerNorm before each activation of the residual blocks."""
    dropout: float = 0.0
    """Share of hidden units left out while training (plain perceptron only); IBRL's actor: .5."""
    output_gain: float | None = None
    """Orthogonal weights, gain sqrt(2) inside and this at the output, zero biases; None: torch's own start."""
    initial_std: float = 0.1
    """Std while cloning, and where fine-tuning starts (normalised units)."""
    min_std: float = 0.01
    """Least std (normalised units)."""
    max_std: float = 0.2
    """Largest std (normalised units)."""
    num_modes: int = 5
    """Gaussians of a MixtureMLP; a GaussianMLP has one."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "hidden", tuple(int(width) for width in self.hidden))
        if self.residual:
            check_hidden(self.hidden)
        elif not self.hidden or any(width < 1 for width in self.hidden):
            raise ConfigError(f"hidden={self.hidden}: expected at least one positive width")
        elif self.layer_norm:
            raise ConfigError("layer_norm=true with residual=false: only residual blocks have norms; drop one of them")
        if not 0.0 <= self.dropout < 1.0 or (self.dropout > 0.0 and self.residual):
            raise ConfigError(f"dropout={self.dropout}: expected 0 to below 1, and 0 unless residual=false")
        if self.output_gain is not None and self.output_gain <= 0.0:
            raise ConfigError(f"output_gain={self.output_gain}: must be positive, or null for torch's own start")
        if not 0.0 < self.min_std <= self.initial_std <= self.max_std:
            raise ConfigError(
                f"min_std={self.min_std}, initial_std={self.initial_std}, max_std={self.max_std}: expected "
                "0 < min_std <= initial_std <= max_std"
            )
        if self.num_modes < 1:
            raise ConfigError(f"num_modes={self.num_modes}: at least one Gaussian is needed")


class GaussianMLP(nn.Module):
    """Means of a chunk, before any squashing, and one log-variance per action dimension."""

    def __init__(self, config: GaussianMLPConfig, *, horizon: int, action_dim: int, cond_dim: int) -> None:
        """horizon: H, action_dim: A, cond_dim: C."""
        super().__init__()
        self.config = config
        self.horizon, self.action_dim, self.cond_dim = horizon, action_dim, cond_dim
        self.body = _body(config, cond_dim, horizon * action_dim)
        self.log_var = nn.Parameter(torch.full((action_dim,), 2.0 * math.log(config.initial_std)))

    def forward(self, cond: Tensor) -> Tensor:
        """Map cond [B, C] -> [B, H, A]."""
        return self.body(cond).view(-1, self.horizon, self.action_dim)

    def std(self) -> Tensor:
        """[A], inside the bounds, with a graph."""
        return bounded_std(self.log_var, self.config)


class Mixture(NamedTuple):
    """logits [B, M] of the modes; out [B, M, H, A], their means before any squashing."""

    logits: Tensor
    out: Tensor


class MixtureMLP(nn.Module):
    """Logits and means of M Gaussians over the whole chunk, and one log-variance per mode and action dimension."""

    def __init__(self, config: GaussianMLPConfig, *, horizon: int, action_dim: int, cond_dim: int) -> None:
        """horizon: H, action_dim: A, cond_dim: C."""
        super().__init__()
        self.config = config
        self.horizon, self.action_dim, self.cond_dim = horizon, action_dim, cond_dim
        self.body = _body(config, cond_dim, config.num_modes * (horizon * action_dim + 1))
        self.log_var = nn.Parameter(torch.full((config.num_modes, action_dim), 2.0 * math.log(config.initial_std)))

    def forward(self, cond: Tensor) -> Mixture:
        """Map cond [B, C] to the mixture."""
        M = self.config.num_modes
        out = self.body(cond)
        return Mixture(out[:, :M], out[:, M:].view(-1, M, self.horizon, self.action_dim))

    def std(self) -> Tensor:
        """[M, A], inside the bounds, with a graph."""
        return bounded_std(self.log_var, self.config)


def bounded_std(log_var: Tensor, config: GaussianMLPConfig) -> Tensor:
    """exp(log_var / 2) clamped to [min_std, max_std]; beyond a bound only the gradient that leads back passes."""
    low, high = 2.0 * math.log(config.min_std), 2.0 * math.log(config.max_std)
    bounded = cast("Tensor", _OneSidedClamp.apply(log_var, low, high))
    return (0.5 * bounded).exp()


class _OneSidedClamp(torch.autograd.Function):
    """Clamp. A plain one has no gradient beyond a bound, so a variance that overshot it once would stay there."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, low: float, high: float) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.save_for_backward(x)
        ctx.bounds = (low, high)
        return x.clamp(low, high)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        low, high = ctx.bounds
        # Descent moves x against its gradient.
        outward = ((x > high) & (grad < 0.0)) | ((x < low) & (grad > 0.0))
        return grad.masked_fill(outward, 0.0), None, None


def _body(config: GaussianMLPConfig, in_dim: int, out_dim: int) -> nn.Module:
    if config.residual:
        body: nn.Module = ResidualMLP(
            in_dim, out_dim, config.hidden, activation=config.activation, layer_norm=config.layer_norm
        )
    else:
        layers = list(plain_mlp((in_dim, *config.hidden, out_dim), config.activation))
        for n in reversed(range(1, len(layers), 2) if config.dropout > 0.0 else ()):
            layers.insert(n + 1, nn.Dropout(config.dropout))
        body = nn.Sequential(*layers)
    if config.output_gain is not None:
        linears = [module for module in body.modules() if isinstance(module, nn.Linear)]
        _orthogonal(linears[:-1], math.sqrt(2.0))
        _orthogonal(linears[-1:], config.output_gain)
    return body


def _orthogonal(linears: Sequence[nn.Linear], gain: float) -> None:
    for linear in linears:
        nn.init.orthogonal_(linear.weight, gain)
        nn.init.zeros_(linear.bias)
