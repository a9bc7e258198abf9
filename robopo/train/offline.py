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
from robopo.train.stages import Stage, Stateful, check_update, learner_state, restore_learner
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
        check_update(guard, metrics, self._modules)
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


class OfflineFirst:
    """``iterations`` of one stage, then another; both change the same learner."""

    def __init__(self, offline: Stage, online: Stage, iterations: int) -> None:
        if iterations < 0:
            raise ConfigError(f"iterations={iterations}: expected 0 or more")
        self._stages, self._iterations, self._done = (offline, online), iterations, 0

    @property
    def _now(self) -> Stage:
        return self._stages[self._done >= self._iterations]

    def step(self, guard: NanGuard) -> dict[str, float]:
        """One iteration of the stage whose turn it is."""
        metrics = self._now.step(guard)
        self._done += 1
        return metrics

    def state(self) -> dict[str, Tree]:
        """Both stages', and how far it is."""
        offline, online = self._stages
        return {"done": self._done, "offline": offline.state(), "online": online.state()}

    def restore(self, state: Mapping[str, Tree]) -> None:
        """Continue from ``state()``."""
        self._done = int(state["done"])
        for stage, name in zip(self._stages, ("offline", "online"), strict=True):
            stage.restore(state[name])

    def evidence(self) -> dict[str, Tree]:
        """Of the stage whose turn it is."""
        return self._now.evidence() | {"done": self._done}

    def replay(self, evidence: Mapping[str, Tree], guard: NanGuard) -> dict[str, float]:
        """Do the failed step again, in the stage that failed."""
        self._done = int(evidence["done"])
        return self._now.replay(evidence, guard)

    def export(self, folder: Path) -> None:
        """Write the policy."""
        self._stages[1].export(folder)
