"""The stage of methods that learn from a replay buffer: collect, remember, update, at their own replay ratio."""

from __future__ import annotations

import copy
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor, nn

from robopo.algos.off_policy import OffPolicyAlgorithm
from robopo.data.replay import ReplayBuffer
from robopo.errors import ConfigError
from robopo.train.metrics import to_scalars
from robopo.train.nan_guard import NanGuard, as_tree
from robopo.train.stages import RolloutSource, Stats, check_update, learner_state, restore_learner, rollout_metrics
from robopo.train.tree import Tree
from robopo.types import RolloutBatch


class OffPolicyStage:
    """``num_decisions`` decisions in every environment go into the buffer, then the algorithm updates from it."""

    def __init__(
        self,
        *,
        collector: RolloutSource,
        algorithm: OffPolicyAlgorithm,
        buffer: ReplayBuffer,
        modules: Mapping[str, nn.Module],
        num_decisions: int,
        sample_generator: torch.Generator,
        update_generator: torch.Generator,
        export: Callable[[Path], None],
        start_size: int = 1,
        columns: Callable[[RolloutBatch], Mapping[str, Tensor]] | None = None,
    ) -> None:
        """collector: acts with ``Explorer(algorithm)``. modules: every network whose weights the algorithm changes or
        reads, by name (policy, critic, value); slow copies are part of its own state. start_size: decisions in the
        buffer, demonstrations included, before the first update. columns: the buffer's further columns for a rollout,
        entries [T, E, ...].
        """
        if num_decisions < 1:
            raise ConfigError(f"num_decisions={num_decisions}: at least 1 is needed")
        if not 1 <= start_size <= buffer.capacity:
            raise ConfigError(f"start_size={start_size}: expected 1 to the buffer's capacity {buffer.capacity}")
        self._collector, self._algorithm, self._buffer = collector, algorithm, buffer
        self._modules, self._num_decisions, self._start_size = dict(modules), num_decisions, start_size
        self._generators = {"sample": sample_generator, "update": update_generator}
        self._export, self._columns = export, columns
        self._env_steps = 0
        self._evidence: dict[str, Tree] = {}

    def step(self, guard: NanGuard) -> dict[str, float]:
        """One iteration; metrics as in OnPolicyStage, ``buffer`` (decisions held) and ``updates``."""
        began = time.monotonic()
        batch = self._collector.collect(self._num_decisions, self._generators["sample"])
        collected = time.monotonic()
        self._evidence = {"batch": as_tree(batch), "learner": copy.deepcopy(self._learner_state())}
        guard.check("batch", batch)
        self._buffer.add_rollout(batch, extras=None if self._columns is None else self._columns(batch))
        updates = self._algorithm.num_updates(batch.reward.numel()) if self._buffer.size >= self._start_size else 0
        self._evidence |= {"buffer": self._buffer.snapshot(), "updates": updates}
        metrics = self._update(updates, guard)
        self._evidence = {}
        stats: Stats = self._collector.stats
        self._env_steps += stats.env_steps
        held = {"buffer": float(self._buffer.size), "updates": float(updates)}
        return rollout_metrics(stats, self._env_steps, began, collected) | held | metrics

    def state(self) -> dict[str, Tree]:
        """Learner, simulator, buffer, generators and counters."""
        return self._learner_state() | {
            "collector": self._collector.state_dict(),
            "buffer": self._buffer.state_dict(),
            "env_steps": self._env_steps,
        }

    def restore(self, state: Mapping[str, Tree]) -> None:
        """Continue from ``state()``."""
        restore_learner(state, modules=self._modules, algorithm=self._algorithm, generators=self._generators)
        self._collector.load_state_dict(state["collector"])
        self._buffer.load_state_dict(state["buffer"])
        self._env_steps = int(state["env_steps"])

    def evidence(self) -> dict[str, Tree]:
        """Rollout, buffer and learner before the update; empty outside a failed step."""
        return self._evidence

    def replay(self, evidence: Mapping[str, Tree], guard: NanGuard) -> dict[str, float]:
        """Do the update of ``evidence`` again, from learner and buffer as they were. Raises NonFiniteError as then."""
        learner, generators = evidence["learner"], self._generators
        restore_learner(learner, modules=self._modules, algorithm=self._algorithm, generators=generators)
        guard.check("batch", RolloutBatch(**evidence["batch"]))
        self._buffer.load_state_dict(evidence["buffer"])
        return self._update(int(evidence["updates"]), guard)

    def export(self, folder: Path) -> None:
        """Write the policy."""
        self._export(folder)

    def _update(self, updates: int, guard: NanGuard) -> dict[str, float]:
        if updates == 0:
            return {}
        metrics = to_scalars(
            self._algorithm.update(self._buffer, updates=updates, generator=self._generators["update"])
        )
        check_update(guard, metrics, self._modules)
        return metrics

    def _learner_state(self) -> dict[str, Tree]:
        return learner_state(modules=self._modules, algorithm=self._algorithm, generators=self._generators)
