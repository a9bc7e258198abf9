"""Policy-gradient surrogates that limit how far a sample may push, elementwise.

Every function takes log_ratio, adv and (if needed) divergence of one shape and returns the loss to be MINIMISED, of the
same shape. r = exp(log_ratio). Gradients stay finite where r overflows, as long as the region holds the sample back.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

HALF_WEIGHT = 2.0 * math.acosh(math.sqrt(2.0))
"""sech^2(x / 2) = 1/2 at x = 1.7627: the soft gate weighs a sample by half where tau |r - 1| has this value."""

# exp(20) = 5e8: far beyond every gate, and its square still fits in float32.
_LOG_RATIO_CAP = 20.0


def masked_loss(*, log_ratio: Tensor, adv: Tensor, keep: Tensor, dual_clip: float | None = None) -> Tensor:
    """-A r where ``keep`` (bool), 0 with a gradient of exactly 0 elsewhere (Flow-DPPO, arXiv 2606.11025).

    dual_clip: cap on r where A <= 0 (Ye et al. 2020, arXiv 1912.09729), with a gradient of 0 beyond it; None: no cap.
    """
    # Before the exp: 0 times the infinite derivative of a dropped one would be NaN.
    kept = torch.where(keep & (adv != 0.0), log_ratio, 0.0)
    if dual_clip is not None:
        kept = torch.where(adv <= 0.0, kept.clamp(max=math.log(dual_clip)), kept)
    return torch.where(keep, -adv * kept.exp(), 0.0)


def spo_loss(*, log_ratio: Tensor, adv: Tensor, eps: float) -> Tensor:
    """-(r A - |A| (r - 1)^2 / (2 eps)) (SPO, arXiv 2401.16025): stationary at r = 1 + eps sign(A)."""
    ratio = torch.where(adv == 0.0, 0.0, log_ratio).exp()  # without an advantage nothing holds the ratio back
    return adv.abs() * (ratio - 1.0).square() / (2.0 * eps) - adv * ratio


def aspo_loss(*, log_ratio: Tensor, adv: Tensor, eps: float) -> Tensor:
    """PPO's clip where A > 0, SPO's parabola where A <= 0 (FPO++, arXiv 2602.02481), each element by itself."""
    # For A > 0: max(-A r, -A clip(r, 1 - eps, 1 + eps)) = -A min(r, 1 + eps).
    raised = -adv * log_ratio.clamp(max=math.log1p(eps)).exp()
    positive = adv > 0.0
    lowered = spo_loss(log_ratio=torch.where(positive, 0.0, log_ratio), adv=adv, eps=eps)
    return torch.where(positive, raised, lowered)


def soft_gate_loss(*, log_ratio: Tensor, adv: Tensor, tau_pos: float, tau_neg: float) -> Tensor:
    """-A (4 / tau) (sigmoid(tau (r - 1)) - 1/2) - A: a gate with f(1) = 1 and f'(1) = 1 (SAPO, arXiv 2511.20347).

    tau_pos where A > 0, tau_neg elsewhere. f' = sech^2(tau (r - 1) / 2). The paper's f differs by a constant, which
    keeps f(1) = 1 here for every tau: the loss of an unchanged policy is -A, as it is for the others.
    """
    ratio = log_ratio.clamp(max=_LOG_RATIO_CAP).exp()
    tau = torch.where(adv > 0.0, torch.full_like(adv, tau_pos), tau_neg)
    # 4 sigmoid(x) - 2 = 2 tanh(x / 2), which keeps its precision as tau -> 0.
    return -adv * (1.0 + 2.0 / tau * torch.tanh(0.5 * tau * (ratio - 1.0)))


def divergence_gate_loss(*, log_ratio: Tensor, adv: Tensor, divergence: Tensor, away: Tensor, delta: float) -> Tensor:
    """-A r w, w = exp(-relu(divergence / delta - 1)) where ``away`` (bool), else 1; w has no gradient."""
    excess = (divergence.detach() / delta - 1.0).relu()
    # r w as one exponential: it overflows only where the gated ratio itself does.
    return -adv * (log_ratio - torch.where(away, excess, 0.0)).exp()
