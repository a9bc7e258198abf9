"""Exponential moving average of a module's parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from robopo.errors import CheckpointError, ConfigError


class EMA:
    """Shadow parameters: shadow <- d shadow + (1 - d) parameter, once per optimiser step.

    With ``warmup`` the n-th update (from 0) uses d = min(decay, (1 + n) / (10 + n)), so that the random start is
    forgotten within tens of steps. Parameters only: buffers stay the module's.
    """

    def __init__(self, module: nn.Module, decay: float = 0.995, *, warmup: bool = True) -> None:
        """decay: 0 copies, towards 1 averages longer. The shadow starts as a copy of ``module``."""
        if not 0.0 <= decay < 1.0:
            raise ConfigError(f"decay={decay}: expected 0 <= decay < 1")
        self.decay, self.warmup = decay, warmup
        self.updates = 0
        self._parameters = dict(module.named_parameters())
        self._shadow = {name: parameter.detach().clone() for name, parameter in self._parameters.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Take one step towards the module's present parameters."""
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates)) if self.warmup else self.decay
        self.updates += 1
        for name, parameter in self._parameters.items():
            self._shadow[name].lerp_(parameter.detach(), 1.0 - decay)

    @torch.no_grad()
    def copy_to(self, module: nn.Module) -> None:
        """Overwrite the parameters of ``module``, which has the layout of the averaged one."""
        for name, parameter in module.named_parameters():
            parameter.copy_(self._shadow[name])

    def state_dict(self) -> dict[str, Any]:
        """Count of updates and shadow parameters (copies)."""
        return {"updates": self.updates, "shadow": {name: value.clone() for name, value in self._shadow.items()}}

    @torch.no_grad()
    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from ``state_dict()``. Raises CheckpointError when names or shapes differ."""
        shadow: Mapping[str, Tensor] = state["shadow"]
        found = {name: tuple(value.shape) for name, value in shadow.items()}
        expected = {name: tuple(value.shape) for name, value in self._shadow.items()}
        if found != expected:
            different = sorted(set(found.items()) ^ set(expected.items()))[:3]
            raise CheckpointError(f"EMA state belongs to another network, first differences: {different}")
        for name, value in self._shadow.items():
            value.copy_(shadow[name])
        self.updates = int(state["updates"])
