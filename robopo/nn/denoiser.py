"""What a denoising network offers to the policies: one call for any batch, and one for every step of a chain."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn


class Denoiser(nn.Module, ABC):
    """Network eps(x, t, cond), t the index of the noise level (0 the cleanest).

    ``forward`` takes rows at mixed levels and is what training differentiates. Sampling visits the same S levels
    with the same condition, so all that doesn't depend on x can be computed once per chain: ``begin_chain`` does that
    and ``chain_step`` needs only x. Both ways give the same function up to rounding. Call
    ``chain_step`` under ``torch.no_grad()``.
    """

    horizon: int
    action_dim: int
    cond_dim: int

    @abstractmethod
    def forward(self, x: Tensor, t: Tensor, cond: Tensor) -> Tensor:
        """Map x [B, H, A], t [B] long, cond [B, C] -> [B, H, A]."""

    @torch.no_grad()
    def begin_chain(self, cond: Tensor, t: Tensor) -> Any:
        """Map cond [B, C] and the levels t [S] of a chain -> the context that ``chain_step`` reads."""
        return cond, t[:, None].expand(-1, cond.shape[0])

    def chain_step(self, x: Tensor, context: Any, k: int) -> Tensor:
        """Map x [B, H, A] at the k-th level of the chain -> [B, H, A]."""
        cond, t = context
        return self(x, t[k], cond)
