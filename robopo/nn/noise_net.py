"""State- and time-dependent exploration noise: ReinFlow (Zhang et al. 2025, arXiv 2505.22094)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from robopo.nn.activation import Activation
from robopo.nn.mlp import plain_mlp
from robopo.nn.time_embed import SinusoidalEmbedding

TIME_DIM = 16


class NoiseNet(nn.Module):
    """sd(s, t) for every number of a chunk, between two bounds.

    log sd^2 = low + (high - low) (tanh(o) + 1) / 2 in log-variances; an output o of zero is the geometric mean of the
    bounds, and that is where training starts. The upper bound may be lowered as training goes on.
    """

    def __init__(
        self, cond_dim: int, horizon: int, action_dim: int, *, low: float, high: float, hidden: Sequence[int] = (64, 64)
    ) -> None:
        """cond_dim: C, horizon: H, action_dim: A. low, high: standard deviations, 0 < low < high."""
        super().__init__()
        self._shape = (horizon, action_dim)
        self.embedding = SinusoidalEmbedding(TIME_DIM)
        self.body = plain_mlp((cond_dim + TIME_DIM, *hidden, horizon * action_dim), Activation.TANH)
        last = self.body[-1]
        nn.init.zeros_(last.weight)  # pyright: ignore[reportArgumentType]
        nn.init.zeros_(last.bias)  # pyright: ignore[reportArgumentType]
        self.bounds: Tensor
        self.register_buffer("bounds", torch.tensor([low, high]).square().log())  # of log-variances

    def set_upper_bound(self, high: float) -> None:
        """Use ``high`` (a standard deviation) from now on."""
        self.bounds[1] = torch.tensor(high, dtype=self.bounds.dtype).square().log()

    def forward(self, cond: Tensor, t: Tensor) -> Tensor:
        """Map cond [B, C] and the network's time t [B] -> standard deviations [B, H, A]."""
        features = torch.cat([cond, self.embedding(t)], dim=1)
        share = 0.5 * (self.body(features).tanh() + 1.0)
        low, high = self.bounds.unbind(0)
        return (0.5 * torch.lerp(low, high, share)).exp().unflatten(1, self._shape)
