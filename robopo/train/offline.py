"""The stage of methods that first learn from demonstrations alone, without a simulator."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from robopo.errors import ConfigError
from robopo.train.metrics import to_scalars
from robopo.train.nan_guard import NanGuard
from robopo.train.stages import Stateful, learner_state, restore_learner
from robopo.train.tree import Tree


class OfflineAlgorithm(Stateful, Protocol):
    """Holds its own demonstrations; ``pretrain`` returns a mapping, NamedTuple or dataclass of scalars."""

    def pretrain(self, *, updates: int, generator: torch.Generator) -> Any: ...


class OfflineStage:
    """``updates_per_iteration`` gradient steps per iteration."""

    def __init__(
        self,
        *,
        algorithm: OfflineAlgorithm,
        modules: Mapping[str, nn.Module],
        updates_per_iteration: int,
        generator: torch.Generator,
        export: Callable[[Path], None],
    ) -> None:
        """modules: every network whose weights the algorithm changes or reads, by name (policy, critic)."""
        if updates_per_iteration < 1:
            raise ConfigError(f"updates_per_iteration={updates_per_iteration}: at least 1 is needed")
        self._algorithm, self._modules, self._updates = algorithm, dict(modules), updates_per_iteration
        self._generators = {"update": generator}
        self._export = export
        self._evidence: dict[str, Tree] = {}

    def step(self, guard: NanGuard) -> dict[str, float]:
        """One iteration; metrics are the algorithm's, and ``updates_per_s``."""
        began = time.monotonic()
        self._evidence = {"learner": copy.deepcopy(self.state())}
        metrics = to_scalars(self._algorithm.pretrain(updates=self._updates, generator=self._generators["update"]))
        guard.check("metrics", metrics)
        for name, module in self._modules.items():
            guard.check(name, module.state_dict())
        self._evidence = {}
        return {"updates_per_s": self._updates / max(time.monotonic() - began, 1e-9), **metrics}

    def state(self) -> dict[str, Tree]:
        """Learner and generator; the demonstrations are read again from their files."""
        return learner_state(modules=self._modules, algorithm=self._algorithm, generators=self._generators)

    def restore(self, state: Mapping[str, Tree]) -> None:
        """Continue from ``state()``."""
        restore_learner(state, modules=self._modules, algorithm=self._algorithm, generators=self._generators)

    def evidence(self) -> dict[str, Tree]:
        """The learner before the iteration; empty outside a failed step."""
        return self._evidence

    def replay(self, evidence: Mapping[str, Tree], guard: NanGuard) -> dict[str, float]:
        """Do the whole iteration of ``evidence`` again, from the learner as it was before it."""
        self.restore(evidence["learner"])
        return self.step(guard)

    def export(self, folder: Path) -> None:
        """Write the policy."""
        self._export(folder)
