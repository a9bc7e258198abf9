"""Simple Policy Optimization: arXiv 2401.16025 (ICML 2025)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from robopo.algos.choices import RatioBatch, Surrogate
from robopo.errors import ConfigError
from robopo.losses.surrogates import spo_loss


@dataclass(frozen=True, slots=True)
class SPO:
    """J = r A - |A| (r - 1)^2 / (2 eps): PPO's clip becomes a pull back to the border, never a gradient of 0."""

    eps: float = 0.2
    """Distance |r - 1| at which a sample has pushed enough; on the scale of the ratio, as PPO's clip would be."""

    needs_divergence = False

    def __post_init__(self) -> None:
        if not self.eps > 0.0:
            raise ConfigError(f"eps={self.eps}: must be positive")

    def surrogate(self, ratio: RatioBatch, adv: Tensor, *, num_steps: int) -> Surrogate:  # noqa: ARG002
        """Penalised -A r; adv [B, V]. blocked: values at or beyond r = 1 + eps sign(A), which are pulled back."""
        loss = spo_loss(log_ratio=ratio.log_ratio, adv=adv, eps=self.eps)
        moved = ratio.log_ratio.detach().exp() - 1.0
        return Surrogate(loss, adv.sign() * moved >= self.eps, outside=moved.abs() > self.eps)
