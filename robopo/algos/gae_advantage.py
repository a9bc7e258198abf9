"""Generalised advantage estimation as a choice of the policy-gradient family (Schulman et al. 2016, eq. 16)."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from robopo.algos.choices import Advantages, RolloutKind
from robopo.errors import ConfigError
from robopo.losses.gae import gae
from robopo.types import RolloutBatch


@dataclass(frozen=True, slots=True)
class GAE:
    """A_t = sum_n (gamma lam)^n delta_{t+n} over decisions; nothing is estimated inside a denoising chain."""

    gamma: float = 0.999
    """Discount per decision (not per control step), in [0, 1]."""
    lam: float = 0.95
    """In [0, 1]; 0 is the TD error, 1 the Monte-Carlo return."""
    legacy: bool = False
    """Ignore truncation as DPPO's published code does, for reproduction only."""

    def __post_init__(self) -> None:
        for name in ("gamma", "lam"):
            value = getattr(self, name)
            if not 0.0 <= value <= 1.0:
                raise ConfigError(f"{name}={value}: expected a number in [0, 1]")

    @property
    def rollout(self) -> RolloutKind:
        """Any rollout will do."""
        return RolloutKind.PLAIN

    def __call__(self, batch: RolloutBatch, reward: Tensor, value: Tensor, next_value: Tensor) -> Advantages:
        """Advantage and return of every decision; all tensors [T, E]."""
        out = gae(
            reward=reward,
            value=value,
            next_value=next_value,
            terminated=batch.terminated,
            truncated=batch.truncated,
            gamma=self.gamma,
            lam=self.lam,
            legacy=self.legacy,
        )
        return Advantages(out.advantage, out.returns)
