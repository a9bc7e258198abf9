"""Drifting models: a one-step generator x = f(e, s) is trained towards its own samples moved along a field V.

Deng et al. 2026 (Generative Modeling via Drifting), arXiv 2602.04770. V = V+ - V-: towards the positives (data), away
from the negatives (generated samples); it vanishes when both are distributed alike. With a Gaussian kernel V is
proportional to the difference of the two smoothed scores.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

import torch
from torch import Tensor


class DriftKernel(StrEnum):
    """How the pull of a sample falls with its distance d, the root mean square over the D numbers."""

    GAUSSIAN = "gaussian"
    """exp(-d^2 / (2 bandwidth^2))."""
    LAPLACIAN = "laplacian"
    """exp(-d / bandwidth): far samples still pull."""

    def log(self, distance: Tensor, bandwidth: float) -> Tensor:
        """Logarithm of the kernel, of the shape of ``distance``."""
        scaled = distance / bandwidth
        return -scaled if self is DriftKernel.LAPLACIAN else -0.5 * scaled.square()


class DriftLoss(NamedTuple):
    """loss: differentiable scalar. Detached: field_rms scalar, how far rows move; rows scalar, how many do."""

    loss: Tensor
    field_rms: Tensor
    rows: Tensor


def rms_distance(x: Tensor, y: Tensor) -> Tensor:
    """Pairwise distances of x [B, D] and y [P, D], the root mean square over D -> [B, P]."""
    # Not by matrix products: cancellation would put a sample at a distance from itself.
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist") * x.shape[1] ** -0.5


def mean_shift(*, x: Tensor, y: Tensor, weight: Tensor, kernel: DriftKernel, bandwidth: float) -> tuple[Tensor, Tensor]:
    """sum_j w_ij k(x_i, y_j) (y_j - x_i) / sum_j w_ij k(x_i, y_j) [B, D], and which rows have any weight [B] bool.

    x [B, D]; y [P, D]; weight [B, P], not negative. Rows without weight get 0. Computed in logarithms: samples that are
    all far away still say where to go.
    """
    some = (weight > 0.0).any(1)
    if y.shape[0] == 0:
        return torch.zeros_like(x), some
    logits = kernel.log(rms_distance(x, y), bandwidth) + weight.log()  # [B, P]
    logits = torch.where(some[:, None], logits, 0.0)
    shift = logits.softmax(1) @ y - x
    return torch.where(some[:, None], shift, 0.0), some


@torch.no_grad()
def drift_field(
    *,
    x: Tensor,
    positive: Tensor,
    positive_weight: Tensor,
    negative_weight: Tensor,
    kernel: DriftKernel,
    bandwidth: float,
) -> tuple[Tensor, Tensor]:
    """V = V+ - V- at the generated x [B, D], and which rows have positives [B] bool; the others get V = 0.

    positive [P, D] with weights [B, P]; the negatives are x itself with weights [B, B], each row among its own: then
    V = 0 exactly when the positives are the generated samples. Without positives nothing is repelled either.
    """
    to_positive, some = mean_shift(x=x, y=positive, weight=positive_weight, kernel=kernel, bandwidth=bandwidth)
    to_negative, _ = mean_shift(x=x, y=x, weight=negative_weight, kernel=kernel, bandwidth=bandwidth)
    return torch.where(some[:, None], to_positive - to_negative, 0.0), some


def drift_loss(*, x: Tensor, field: Tensor, some: Tensor) -> DriftLoss:
    """Mean over the rows with positives of |x - sg(x + V)|^2 / D, to be minimised.

    x [B, D] with a graph; field [B, D]; some [B] bool. The value is the field's mean square; the gradient with respect
    to x is -2 V / (D * rows), since nothing flows through the target. Without any positives: 0, with gradient 0.
    """
    target = (x + field).detach()
    rows = some.sum().to(x.dtype)
    per_row = (x - target).square().mean(1)
    loss = torch.where(some, per_row, 0.0).sum() / rows.clamp(min=1.0)
    return DriftLoss(loss, loss.detach().sqrt(), rows)
