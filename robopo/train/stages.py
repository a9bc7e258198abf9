"""The two kinds of training that the loop drives: cloning demonstrations, and on-policy fine-tuning.

A stage owns no files and builds nothing: it joins the objects it is handed into one step, one state tree and one
export.
"""

from __future__ import annotations

import copy
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError
from robopo.train.metrics import flat, to_scalars
from robopo.train.nan_guard import NanGuard, as_tree
from robopo.train.tree import Tree
from robopo.types import Observation, RolloutBatch

log = logging.getLogger(__name__)


class Stage(Protocol):
    """What ``robopo.train.loop.train`` needs."""

    def step(self, guard: NanGuard) -> dict[str, float]:
        """Do one iteration and return its metrics. Raises NonFiniteError through ``guard``."""
        ...

    def state(self) -> dict[str, Tree]:
        """Everything that decides the next step."""
        ...

    def restore(self, state: Mapping[str, Tree]) -> None:
        """Continue exactly from what ``state`` returned."""
        ...

    def evidence(self) -> dict[str, Tree]:
        """The batch of the running step, and the learner as it was before it, for a NaN dump."""
        ...

    def replay(self, evidence: Mapping[str, Tree], guard: NanGuard) -> dict[str, float]:
        """Do the failed step again from what ``evidence`` returned then; its metrics, or NonFiniteError."""
        ...

    def export(self, folder: Path) -> None:
        """Write the policy that would be used now into the existing, empty ``folder``."""
        ...


class Stateful(Protocol):
    """An object with a state tree."""

    def state_dict(self) -> Any: ...

    def load_state_dict(self, state_dict: Any, /) -> Any: ...


class OnPolicyAlgorithm(Stateful, Protocol):
    """Updates its networks from one rollout; ``metrics`` is a mapping, NamedTuple or dataclass of scalars."""

    def update(self, batch: RolloutBatch, *, generator: torch.Generator) -> Any: ...


class Stats(Protocol):
    """What one ``collect`` did; rates and means are NaN when no episode finished."""

    @property
    def env_steps(self) -> int: ...
    @property
    def episodes(self) -> Sequence[Any]: ...
    @property
    def diverged(self) -> int: ...
    @property
    def success_rate(self) -> float: ...
    @property
    def mean_return(self) -> float: ...
    @property
    def mean_length(self) -> float: ...


class ObservationStats(Stateful, Protocol):
    """Follows what observations look like; ``update`` may move the policy's normaliser."""

    def update(self, obs: Observation, /) -> None: ...


class RolloutSource(Stateful, Protocol):
    """Acts in a simulator; ``stats`` are of the last ``collect``."""

    stats: Any  # Stats | None

    def collect(self, num_decisions: int, generator: torch.Generator) -> RolloutBatch: ...


class CloningAlgorithm(Stateful, Protocol):
    """One gradient step of imitation."""

    def update(
        self, obs: Observation, action: Tensor, generator: torch.Generator, pad_mask: Tensor | None = None
    ) -> Any: ...


class Window(Protocol):
    """A batch of demonstration windows: obs [B, To, D] by name, action [B, H, A], pad_mask [B, H]."""

    @property
    def obs(self) -> Observation: ...
    @property
    def action(self) -> Tensor: ...
    @property
    def pad_mask(self) -> Tensor: ...


class WindowSource(Protocol):
    """Demonstration windows by number."""

    def __len__(self) -> int: ...

    def gather(self, index: Tensor) -> Window: ...


class OnPolicyStage:
    """Collect ``num_decisions`` decisions in every environment, then update."""

    def __init__(
        self,
        *,
        collector: RolloutSource,
        algorithm: OnPolicyAlgorithm,
        modules: Mapping[str, nn.Module],
        num_decisions: int,
        sample_generator: torch.Generator,
        update_generator: torch.Generator,
        export: Callable[[Path], None],
        observation_stats: ObservationStats | None = None,
    ) -> None:
        """modules: every network whose weights the algorithm changes or reads, by name (policy, critic).

        observation_stats: sees the observations [..., To, D] of each rollout's decisions once its update is over.
        """
        if num_decisions < 1:
            raise ConfigError(f"num_decisions={num_decisions}: at least 1 is needed")
        self._collector, self._algorithm = collector, algorithm
        self._modules, self._num_decisions = dict(modules), num_decisions
        self._generators = {"sample": sample_generator, "update": update_generator}
        self._export = export
        self._observation_stats = observation_stats
        self._env_steps = 0
        self._evidence: dict[str, Tree] = {}

    def step(self, guard: NanGuard) -> dict[str, float]:
        """One iteration; its metrics: ``env_steps`` so far, ``steps_per_s``, the rollout's and the update's."""
        began = time.monotonic()
        batch = self._collector.collect(self._num_decisions, self._generators["sample"])
        collected = time.monotonic()
        self._evidence = {"batch": as_tree(batch), "learner": copy.deepcopy(self._learner_state())}
        guard.check("batch", batch)
        metrics = to_scalars(self._algorithm.update(batch, generator=self._generators["update"]))
        guard.check("metrics", metrics)
        if self._observation_stats is not None:
            # After the update: rollout and update share one normaliser. What waiting environments see is filler.
            seen, use = {k: x for k, x in batch.obs.items() if x.is_floating_point()}, batch.extras.get("use")
            self._observation_stats.update(seen if use is None else {k: x[use] for k, x in seen.items()})
        for name, module in self._modules.items():
            guard.check(name, module.state_dict())
        self._evidence = {}
        stats: Stats = self._collector.stats
        first = self._env_steps == 0
        self._env_steps += stats.env_steps
        if first and stats.episodes and stats.success_rate == 0.0:
            log.warning(
                "none of the first %d episodes succeeded with exploration noise: a sparse reward teaches nothing here; "
                "clone better demonstrations, explore with less noise (diffusion: finetune.std_floor, flow: "
                "algo.exploration.kernel), or use sim.dense_reward=true",
                len(stats.episodes),
            )
        return rollout_metrics(stats, self._env_steps, began, collected) | metrics

    def state(self) -> dict[str, Tree]:
        """Learner, simulator, generators, counters and observation statistics."""
        state = self._learner_state() | {"collector": self._collector.state_dict(), "env_steps": self._env_steps}
        stats = self._observation_stats
        return state if stats is None else state | {"observation_stats": stats.state_dict()}

    def restore(self, state: Mapping[str, Tree]) -> None:
        """Continue from ``state()``."""
        restore_learner(state, modules=self._modules, algorithm=self._algorithm, generators=self._generators)
        self._collector.load_state_dict(state["collector"])
        if self._observation_stats is not None:
            self._observation_stats.load_state_dict(state["observation_stats"])
        self._env_steps = int(state["env_steps"])

    def evidence(self) -> dict[str, Tree]:
        """Batch and learner before the update; empty outside a failed step."""
        return self._evidence

    def replay(self, evidence: Mapping[str, Tree], guard: NanGuard) -> dict[str, float]:
        """Do the update of ``evidence`` again, from the learner as it was. Raises NonFiniteError as it did then."""
        learner, generators = evidence["learner"], self._generators
        restore_learner(learner, modules=self._modules, algorithm=self._algorithm, generators=generators)
        batch = RolloutBatch(**evidence["batch"])
        guard.check("batch", batch)
        return to_scalars(self._algorithm.update(batch, generator=generators["update"]))

    def export(self, folder: Path) -> None:
        """Write the policy."""
        self._export(folder)

    def _learner_state(self) -> dict[str, Tree]:
        return learner_state(modules=self._modules, algorithm=self._algorithm, generators=self._generators)


class CloningStage:
    """``updates_per_iteration`` gradient steps on shuffled windows; each window is seen once before any comes again."""

    def __init__(
        self,
        *,
        windows: WindowSource,
        algorithm: CloningAlgorithm,
        modules: Mapping[str, nn.Module],
        batch_size: int,
        updates_per_iteration: int,
        order_generator: torch.Generator,
        noise_generator: torch.Generator,
        export: Callable[[Path], None],
    ) -> None:
        """order_generator draws on the CPU, noise_generator on the learner's device."""
        if batch_size < 1 or updates_per_iteration < 1:
            raise ConfigError(
                f"batch_size={batch_size}, updates_per_iteration={updates_per_iteration}: at least 1 each is needed"
            )
        self._windows, self._algorithm, self._modules = windows, algorithm, dict(modules)
        self._batch_size = min(batch_size, len(windows))
        self._updates = updates_per_iteration
        self._generators = {"order": order_generator, "noise": noise_generator}
        self._export = export
        self._order = torch.empty(0, dtype=torch.long)  # window numbers still to come in this pass
        self._evidence: dict[str, Tree] = {}

    def step(self, guard: NanGuard) -> dict[str, float]:
        """One iteration; metrics are means over its gradient steps."""
        began = time.monotonic()
        before = copy.deepcopy(self._learner_state() | {"order": self._order})
        total: dict[str, Tensor | float] = {}
        for _ in range(self._updates):
            batch = self._windows.gather(self._next_index())
            self._evidence = {
                "batch": as_tree(batch),
                "learner": before,
            }
            metrics = flat(self._algorithm.update(batch.obs, batch.action, self._generators["noise"], batch.pad_mask))
            # Sums stay on the device: one synchronisation per iteration, not per gradient step.
            total = {name: total.get(name, 0.0) + value for name, value in metrics.items()}
        means = {name: value / self._updates for name, value in to_scalars(total).items()}
        check_update(guard, means, self._modules)
        self._evidence = {}
        return {"updates_per_s": self._updates / max(time.monotonic() - began, 1e-9), **means}

    def state(self) -> dict[str, Tree]:
        """Learner, generators and the rest of the running pass over the data."""
        return self._learner_state() | {"order": self._order}

    def restore(self, state: Mapping[str, Tree]) -> None:
        """Continue from ``state()``."""
        restore_learner(state, modules=self._modules, algorithm=self._algorithm, generators=self._generators)
        self._order = state["order"]

    def evidence(self) -> dict[str, Tree]:
        """Last batch and the learner before the iteration; empty outside a failed step."""
        return self._evidence

    def replay(self, evidence: Mapping[str, Tree], guard: NanGuard) -> dict[str, float]:
        """Do the whole iteration of ``evidence`` again, from the learner as it was before it."""
        self.restore(evidence["learner"])
        return self.step(guard)

    def export(self, folder: Path) -> None:
        """Write the policy."""
        self._export(folder)

    def _learner_state(self) -> dict[str, Tree]:
        return learner_state(modules=self._modules, algorithm=self._algorithm, generators=self._generators)

    def _next_index(self) -> Tensor:
        """[B] window numbers; a pass's remainder joins the start of the next one."""
        if len(self._order) < self._batch_size:
            fresh = torch.randperm(len(self._windows), generator=self._generators["order"])
            self._order = torch.cat([self._order, fresh])
        index, self._order = self._order[: self._batch_size], self._order[self._batch_size :]
        return index


def learner_state(
    *, modules: Mapping[str, nn.Module], algorithm: Stateful, generators: Mapping[str, torch.Generator]
) -> dict[str, Tree]:
    """Weights, algorithm state and generator states as one tree."""
    return {
        "modules": {name: dict(module.state_dict()) for name, module in modules.items()},
        "algorithm": algorithm.state_dict(),
        "generators": {name: generator.get_state() for name, generator in generators.items()},
    }


def restore_learner(
    state: Mapping[str, Tree],
    *,
    modules: Mapping[str, nn.Module],
    algorithm: Stateful,
    generators: Mapping[str, torch.Generator],
) -> None:
    """Inverse of ``learner_state``, in place."""
    for name, module in modules.items():
        module.load_state_dict(state["modules"][name])
    algorithm.load_state_dict(state["algorithm"])
    for name, generator in generators.items():
        generator.set_state(state["generators"][name])


def rollout_metrics(stats: Stats, env_steps: int, began: float, collected: float) -> dict[str, float]:
    """What an iteration with a rollout logs of it: ``env_steps`` so far, times of ``began``, ``collected`` and now."""
    finished = time.monotonic()
    return {
        "env_steps": float(env_steps),
        "steps_per_s": stats.env_steps / max(finished - began, 1e-9),
        "train/episodes": float(len(stats.episodes)),
        "train/diverged": float(stats.diverged),
        "train/success": stats.success_rate,
        "return": stats.mean_return,
        "train/length": stats.mean_length,
        "time/collect_s": collected - began,
        "time/update_s": finished - collected,
    }


def check_update(guard: NanGuard, metrics: Mapping[str, float], modules: Mapping[str, nn.Module]) -> None:
    """Raise NonFiniteError where an update left a NaN or infinity in its metrics or its networks."""
    guard.check("metrics", metrics)
    for name, module in modules.items():
        guard.check(name, module.state_dict())
