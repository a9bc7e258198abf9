"""No trust region: the importance-weighted policy gradient."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from robopo.algos.choices import RatioBatch, Surrogate


@dataclass(frozen=True, slots=True)
class Unbounded:
    """J = r A, for comparisons: only a small learning rate, few epochs and target_kl keep the policy near."""

    needs_divergence = False

    def surrogate(self, ratio: RatioBatch, adv: Tensor, *, num_steps: int) -> Surrogate:  # noqa: ARG002
        """-A r; adv [B, V]. Nothing is blocked."""
        loss = -adv * torch.where(adv == 0.0, 0.0, ratio.log_ratio).exp()  # 0 times infinity would be NaN
        return Surrogate(loss, torch.zeros_like(loss, dtype=torch.bool))
