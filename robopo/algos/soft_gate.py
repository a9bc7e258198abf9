"""Gates instead of borders: SAPO (arXiv 2511.20347) on the ratio, and its counterpart on the divergence."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from robopo.algos.choices import RatioBatch, Surrogate
from robopo.algos.flow_dppo import check_threshold, divergence_of, threshold
from robopo.errors import ConfigError
from robopo.losses.divergence import moves_away
from robopo.losses.surrogates import HALF_WEIGHT, divergence_gate_loss, soft_gate_loss


@dataclass(frozen=True, slots=True)
class SoftGate:
    """J = f(r) A with f'(r) = sech^2(tau (r - 1) / 2): samples fade out as their ratio leaves 1, on either side.

    Language models use tau = 1. The ratios of denoising steps live so close to 1 that nothing would be gated there, so
    tau follows from the clip that would be used instead.
    """

    eps: float = 0.2
    """|r - 1| at which a sample with positive advantage has half its weight: tau_pos = 1.763 / eps."""
    tau_pos: float | None = None
    """Sharpness where the advantage is positive, instead of ``eps``."""
    tau_neg: float | None = None
    """Sharpness elsewhere; null: 1.05 tau_pos, the published relation."""

    needs_divergence = False

    def __post_init__(self) -> None:
        for name in ("eps", "tau_pos", "tau_neg"):
            value: float | None = getattr(self, name)
            if value is not None and not value > 0.0:
                raise ConfigError(f"{name}={value}: must be positive")

    def surrogate(self, ratio: RatioBatch, adv: Tensor, *, num_steps: int) -> Surrogate:  # noqa: ARG002
        """Gate -A r; adv [B, V]. blocked: values with less than half their weight."""
        tau_pos = HALF_WEIGHT / self.eps if self.tau_pos is None else self.tau_pos
        tau_neg = 1.05 * tau_pos if self.tau_neg is None else self.tau_neg
        loss = soft_gate_loss(log_ratio=ratio.log_ratio, adv=adv, tau_pos=tau_pos, tau_neg=tau_neg)
        tau = torch.where(adv > 0.0, torch.full_like(adv, tau_pos), tau_neg)
        distance = (ratio.log_ratio.detach().exp() - 1.0).abs()
        return Surrogate(loss, tau * distance > HALF_WEIGHT)


@dataclass(frozen=True, slots=True)
class DivergenceGate:
    """J = w r A with w = exp(-relu(KL / delta - 1)) where a sample moves away, else 1: a mask that fades in."""

    delta_chain: float = 0.05
    """KL allowed to the whole denoising chain, as in DivergenceMask."""
    delta: float | None = None
    """Threshold of each value itself, instead of a share of ``delta_chain``."""

    needs_divergence = True

    def __post_init__(self) -> None:
        check_threshold(self.delta_chain, self.delta)

    def surrogate(self, ratio: RatioBatch, adv: Tensor, *, num_steps: int) -> Surrogate:
        """Gate -A r; adv [B, V]. blocked: values with less than half their weight."""
        divergence = divergence_of(ratio, "DivergenceGate")
        delta = threshold(self.delta_chain, self.delta, ratio, num_steps)
        pivot = divergence if ratio.pivot is None else ratio.pivot
        away = moves_away(adv=adv, log_ratio=ratio.log_ratio, divergence=pivot)
        loss = divergence_gate_loss(log_ratio=ratio.log_ratio, adv=adv, divergence=divergence, away=away, delta=delta)
        half = divergence / delta - 1.0 > math.log(2.0)
        return Surrogate(loss, away & half, outside=divergence > delta)
