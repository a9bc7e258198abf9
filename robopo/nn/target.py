"""A slowly following copy of a network: what temporal-difference targets are computed with."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from robopo.errors import ConfigError


class TargetNetwork[M: nn.Module]:
    """``module`` is a frozen copy that moves by target <- (1 - tau) target + tau online at every ``update``.

    Polyak averaging, Lillicrap et al. 2016 (DDPG), arXiv 1509.02971. Buffers are copied, not averaged.
    """

    def __init__(self, online: M, tau: float, *, into: M | None = None) -> None:
        """tau: 0 < tau <= 1; 1 copies. into: a module of the same layout that follows instead of a fresh copy."""
        if not 0.0 < tau <= 1.0:
            raise ConfigError(f"tau={tau}: expected 0 < tau <= 1")
        self.tau = tau
        self.online = online
        self.module: M = (copy.deepcopy(online) if into is None else into).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self) -> None:
        """Take one step towards the online network."""
        for old, new in zip(self.module.parameters(), self.online.parameters(), strict=True):
            old.lerp_(new.detach(), self.tau)
        for old, new in zip(self.module.buffers(), self.online.buffers(), strict=True):
            old.copy_(new)

    @torch.no_grad()
    def reset(self) -> None:
        """Become an exact copy of the online network."""
        self.module.load_state_dict(self.online.state_dict())

    def state_dict(self) -> dict[str, Any]:
        """Weights of the copy."""
        return {name: value.clone() for name, value in self.module.state_dict().items()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``."""
        self.module.load_state_dict(dict(state))
