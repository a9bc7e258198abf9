"""Optimiser steps that no NaN gets through, and minibatches."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn


class GuardedAdamW(torch.optim.AdamW):
    """AdamW whose step is void, on the device, when the gradient is not finite."""

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        *,
        lr: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
    ) -> None:
        self._guarded = [parameter for parameter in parameters if parameter.requires_grad]
        super().__init__(self._guarded, lr=lr, betas=betas, weight_decay=weight_decay, fused=True)

    def guarded_step(self, *, max_grad_norm: float | None = None) -> Tensor:
        """Clip to ``max_grad_norm``, step, and return the gradient norm before clipping, a scalar on the device.

        A NaN or infinite norm leaves weights, moments and step counts as they were. No synchronisation.
        """
        norm = nn.utils.get_total_norm([p.grad for p in self._guarded if p.grad is not None])
        if max_grad_norm is not None:
            nn.utils.clip_grads_with_norm_(self._guarded, max_grad_norm, norm)
        # The fused kernels read this flag on the device; torch's GradScaler skips steps the same way.
        self.found_inf = (~norm.isfinite()).float()
        self.step()
        return norm

    def set_lr(self, lr: float) -> None:
        """Use ``lr`` from the next step on."""
        for group in self.param_groups:
            group["lr"] = lr


def permutation(size: int, generator: torch.Generator, device: torch.device) -> Tensor:
    """A random order of ``size`` indices on ``device``; the generator may live elsewhere."""
    return torch.randperm(size, generator=generator, device=generator.device).to(device)


def minibatches(index: Tensor, size: int) -> tuple[Tensor, ...]:
    """Split ``index`` [M] into floor(M / size) parts of ``size``, or one part of M when M < size; none when M = 0."""
    if len(index) == 0:
        return ()
    size = min(size, len(index))
    return index[: len(index) // size * size].split(size)


def first_nonfinite(tensors: Mapping[str, Tensor | None]) -> tuple[str, Tensor] | None:
    """The first entry that holds a NaN or an infinity. Synchronises the device: for the error path alone."""
    for name, tensor in tensors.items():
        if tensor is not None and not bool(torch.isfinite(tensor).all()):
            return name, tensor
    return None
