"""Conditional flow matching as a likelihood: losses at stored (t, noise) pairs, and what their differences mean.

FPO (arXiv 2507.21053): the flow-matching loss of an action is minus a bound on its log-likelihood up to a constant, so
exp(old loss - new loss) stands in for the likelihood ratio. x_t = (1 - t) a + t e, t = 1 is noise, target e - a.
Shapes: clean, noise and velocity [..., Ta, A]; t and losses [...].
"""

from __future__ import annotations

from enum import StrEnum

import torch
from torch import Tensor

from robopo.losses.divergence import proxy_kl_weight


class CfmLoss(StrEnum):
    """Which error of the predicted velocity counts."""

    VELOCITY = "velocity"
    """|v - (e - a)|^2."""
    NOISE = "noise"
    """|e^ - e|^2 with e^ = x + (1 - t) v: (1 - t)^2 times the velocity's."""
    CLEAN = "clean"
    """|a^ - a|^2 with a^ = x - t v: t^2 times the velocity's."""
    HUBER = "huber"
    """Pseudo-Huber of the velocity's error d: d^2 up to the width w, then 2 w |d| - w^2 (FPO++, arXiv 2602.02481)."""


class CfmReduction(StrEnum):
    """How the errors of a pair's Ta * A executed numbers become one loss."""

    MEAN = "mean"
    SUM = "sum"
    SQRT = "sqrt"
    """Sum / sqrt(Ta * A)."""
    ROWS = "rows"
    """Sum over the rows of the mean over A."""


def flow_latent(clean: Tensor, noise: Tensor, t: Tensor) -> Tensor:
    """x_t [..., H, A]."""
    return torch.lerp(clean, noise, t[..., None, None])


def cfm_elements(
    velocity: Tensor, *, clean: Tensor, noise: Tensor, t: Tensor, kind: CfmLoss, width: float = 1.0
) -> Tensor:
    """Elementwise loss; width: of HUBER."""
    error = velocity - (noise - clean)
    if kind is CfmLoss.HUBER:
        size = error.abs()
        return torch.where(size <= width, error.square(), 2.0 * width * size - width**2)
    return error.square() * _time_factor(t, kind)


def cfm_slope(
    velocity: Tensor, *, clean: Tensor, noise: Tensor, t: Tensor, kind: CfmLoss, width: float = 1.0
) -> Tensor:
    """Derivative of ``cfm_elements`` with respect to the velocity."""
    error = velocity - (noise - clean)
    if kind is CfmLoss.HUBER:
        return 2.0 * error.clamp(-width, width)
    return 2.0 * error * _time_factor(t, kind)


def _time_factor(t: Tensor, kind: CfmLoss) -> Tensor:
    t = t[..., None, None]
    return {CfmLoss.NOISE: (1.0 - t).square(), CfmLoss.CLEAN: t.square()}.get(kind, torch.ones_like(t))


def reduce_numbers(elements: Tensor, reduction: CfmReduction) -> Tensor:
    """[..., Ta, A] -> [...]."""
    match reduction:
        case CfmReduction.MEAN:
            return elements.mean((-2, -1))
        case CfmReduction.SUM:
            return elements.sum((-2, -1))
        case CfmReduction.SQRT:
            return elements.sum((-2, -1)) / (elements.shape[-1] * elements.shape[-2]) ** 0.5
        case CfmReduction.ROWS:
            return elements.mean(-1).sum(-1)


def straight_through_clamp(x: Tensor, *, low: float | None = None, high: float | None = None) -> Tensor:
    """Clamped value, gradient of the unclamped one: a plain clamp would stop the learning of whatever is beyond it."""
    if low is None and high is None:
        return x
    return x + (x.clamp(low, high) - x).detach()


def proxy_divergence(new: Tensor, old: Tensor, t: Tensor, eta: float) -> Tensor:
    """w(t) (v_new - v_old)^2 of every element: the KL per unit of time that a Flow-SDE of level eta would have."""
    return proxy_kl_weight(t, eta)[..., None, None] * (new - old).square()
