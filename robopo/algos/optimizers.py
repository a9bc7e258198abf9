"""Optimisers of the actor, as choices. A step whose gradient is not finite is void."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

from torch import nn

from robopo.algos.stepping import GuardedAdamW
from robopo.errors import ConfigError


class OptimizerChoice(Protocol):
    """Builds the optimiser once the parameters are known."""

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> GuardedAdamW:
        """An optimiser of ``parameters`` whose step leaves everything as it was when the gradient is not finite."""
        ...


@dataclass(frozen=True, slots=True)
class AdamW:
    """Adam with decoupled weight decay (Loshchilov and Hutter 2019, arXiv 1711.05101), as DPPO uses it."""

    betas: tuple[float, float] = (0.9, 0.999)
    """Decay of the running mean and of the running square of the gradient, each in [0, 1)."""
    weight_decay: float = 0.0
    """Times the learning rate: share of every weight that a step removes; 0 is Adam."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", _checked_betas(self.betas))
        if self.weight_decay < 0.0:
            raise ConfigError(f"weight_decay={self.weight_decay}: expected 0 or more")

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> GuardedAdamW:
        """The optimiser."""
        return GuardedAdamW(parameters, lr=lr, betas=self.betas, weight_decay=self.weight_decay)


@dataclass(frozen=True, slots=True)
class AdamRMSInterp:
    """Experimental: between Adam (lam = 1) and RMSProp (lam = 0), as ADPO's text suggests (arXiv 2505.08376).

    m <- lam b1 m + (1 - lam b1) g,  v <- b2 v + (1 - b2) g^2,  step -lr m' / (sqrt(v') + eps), m' and v' corrected for
    their start at 0. This is our own reading: where ADPO places its factor lam, its value and its bias correction are
    in no public text or code that we know of, so nothing here reproduces its results.
    """

    lam: float = 0.9
    """In [0, 1]: 1 is Adam without weight decay, 0 is bias-corrected RMSProp."""
    betas: tuple[float, float] = (0.9, 0.999)
    """b1 and b2, each in [0, 1)."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", _checked_betas(self.betas))
        if not 0.0 <= self.lam <= 1.0:
            raise ConfigError(f"lam={self.lam}: expected a number in [0, 1]")

    def build(self, parameters: Iterable[nn.Parameter], lr: float) -> GuardedAdamW:
        """The optimiser: the rule above is Adam whose first decay is lam b1."""
        b1, b2 = self.betas
        return GuardedAdamW(parameters, lr=lr, betas=(self.lam * b1, b2))


def _checked_betas(betas: tuple[float, float]) -> tuple[float, float]:
    """As a tuple: Hydra hands over a list."""
    if len(betas) != 2 or not all(0.0 <= beta < 1.0 for beta in betas):
        raise ConfigError(f"betas={tuple(betas)}: expected two numbers in [0, 1)")
    return float(betas[0]), float(betas[1])
