"""Collects groups of episodes that start from the same state, for advantages that compare them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopo.errors import ConfigError
from robopo.losses.group_relative import zero_spread
from robopo.policies.base import Policy
from robopo.rollout.episodes import EpisodeSeeds, RolloutStats
from robopo.rollout.runner import ChunkRunner, Decision, stack
from robopo.types import RolloutBatch
from sims.base import Seed, VecSim


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """How episodes are grouped."""

    group_size: int = 8
    """G, environments that start from the same state; 2 or more, and a divisor of the number of environments."""
    max_rounds: int = 1
    """A group whose members all got the same return is run again from another start until it was run this often
    (the dynamic sampling of DAPO, arXiv 2503.14476); 1 or more, 1: never again. All steps are counted."""

    def __post_init__(self) -> None:
        if self.group_size < 2:
            raise ConfigError(f"group_size={self.group_size}: expected 2 or more; one episode has nobody to beat")
        if self.max_rounds < 1:
            raise ConfigError(f"max_rounds={self.max_rounds}: expected 1 or more")


class GroupCollector:
    """Every ``collect`` runs one episode per environment, from starts that the members of a group share.

    Environments [i * G, (i + 1) * G) are group i; the policy's noise is what tells its members apart. An environment
    is left alone once its episode is over. An episode that is not over after T decisions is cut there: it counts as
    truncated, with its return so far. The batch has as many rows as the longest episode took, T at most. Extras:
    ``group`` [E] long, and ``use`` [T, E] bool, False after the end of the episode; what lies there is filler.
    """

    def __init__(
        self,
        sim: VecSim,
        policy: Policy,
        config: GroupConfig,
        *,
        seeds: EpisodeSeeds,
        device: torch.device | str = "cpu",
        also: Collection[str] = (),
    ) -> None:
        """seeds: where the starts come from; they must leave out those of evaluation episodes. also: see Collector."""
        if not sim.spec.maskable:
            raise ConfigError(
                f"{sim.spec.name} ({sim.spec.engine}) can't mask environments, so episodes that start together can't "
                "wait for each other; use a maskable simulator or an advantage with rollout 'plain'"
            )
        if sim.num_envs % config.group_size:
            raise ConfigError(
                f"{sim.num_envs} environments can't be split into groups of {config.group_size}; "
                "make num_envs a multiple of group_size"
            )
        self._runner = ChunkRunner(sim, policy, device=device, also=also)
        self.sim, self.policy, self.config, self.device = sim, policy, config, self._runner.device
        self.stats: RolloutStats | None = None
        """Of the last ``collect``; the episodes of every round."""
        self._seeds = seeds
        self._group = np.arange(sim.num_envs) // config.group_size

    @property
    def env_steps(self) -> int:
        """Control steps since construction (or since the run began, after a resume)."""
        return self._runner.env_steps

    def reset(self, seed: Seed = None) -> None:
        """Reset the simulator, as Collector does; the next ``collect`` draws its own starts all the same."""
        self._runner.reset(seed)

    @torch.no_grad()
    def collect(self, num_decisions: int, generator: torch.Generator) -> RolloutBatch:
        """Run one episode of at most ``num_decisions`` (T) decisions everywhere. generator: of the policy's device."""
        if num_decisions < 1:
            raise ConfigError(f"num_decisions={num_decisions}: expected 1 or more")
        group = torch.from_numpy(self._group).to(self.device)
        self._runner.begin()
        batch, decisions = self._episodes(num_decisions, np.ones(self.sim.num_envs, bool), generator)
        for _ in range(self.config.max_rounds - 1):
            level = zero_spread(episode_return=_returns(batch), group=group)
            again = level.cpu().numpy()
            if not again.any():
                break
            fresh, taken = self._episodes(num_decisions, again, generator)
            batch, decisions = _overlay(batch, fresh, level), decisions + taken
        self.stats = self._runner.summary(decisions)
        used = int(batch.extras["use"].any(dim=1).sum())  # the rows of an episode come first, so these do too
        return _head(batch, used, group)

    def _episodes(
        self, num_decisions: int, chosen: NDArray[np.bool_], generator: torch.Generator
    ) -> tuple[RolloutBatch, int]:
        """New episodes in the environments of ``chosen`` [E]: T rows with ``use``, and the number of decisions."""
        starts = self._seeds.draw(self.sim.num_envs // self.config.group_size)
        self._runner.reset(starts[self._group], chosen)
        rows: list[Decision] = []
        use: list[NDArray[np.bool_]] = []
        running = chosen.copy()
        for _ in range(num_decisions):
            if running.any():
                rows.append(self._runner.decide(generator, running))
            else:
                rows.append(_blank(rows[-1]))
            use.append(running)
            running = running & ~(rows[-1].terminated | rows[-1].truncated)
        self._runner.cut(running)
        rows[-1] = replace(rows[-1], truncated=rows[-1].truncated | running)
        used = np.stack(use)
        batch = stack(rows, self.device)
        return replace(batch, extras={"use": torch.from_numpy(used).to(self.device)}), int(used.sum())

    def state_dict(self) -> dict[str, Any]:
        """The counters: episodes don't go on from one ``collect`` to the next, so no simulator has to be restored."""
        return {"env_steps": self._runner.env_steps, "seeds": self._seeds.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state_dict()``."""
        if "seeds" not in state:
            raise ConfigError("the saved run did not collect in groups; resume with the advantage it was started with")
        self._runner.env_steps = int(state["env_steps"])
        self._seeds.load_state_dict(state["seeds"])


def _returns(batch: RolloutBatch) -> Tensor:
    """[E] undiscounted returns of the episodes, summed as GroupRelative does."""
    return torch.where(batch.extras["use"], batch.reward, 0.0).sum(dim=0)


def _blank(row: Decision) -> Decision:
    """A row in which no environment did anything."""
    none = np.zeros_like(row.first)
    return replace(row, reward=np.zeros_like(row.reward), terminated=none, truncated=none, first=none)


def _overlay(old: RolloutBatch, new: RolloutBatch, mask: Tensor) -> RolloutBatch:
    """The environments of ``mask`` [E] from ``new``, all others from ``old``; both have T rows."""

    def choose(before: Any, after: Any) -> Any:
        if before is None:
            return None
        if isinstance(before, Tensor):
            chosen = mask.view(-1, *([1] * (before.ndim - 2))).to(before.device)  # pictures lie on the host
            return torch.where(chosen, after, before)
        return {key: choose(value, after[key]) for key, value in before.items()}

    names = [field.name for field in fields(RolloutBatch)]
    return RolloutBatch(**{name: choose(getattr(old, name), getattr(new, name)) for name in names})


def _head(batch: RolloutBatch, rows: int, group: Tensor) -> RolloutBatch:
    """The first ``rows`` decisions, as copies that don't keep the rest alive, and the groups."""

    def cut(value: Any) -> Any:
        if value is None:
            return None
        if isinstance(value, Tensor):
            return value if len(value) == rows else value[:rows].clone()
        return {key: cut(entry) for key, entry in value.items()}

    parts = {field.name: cut(getattr(batch, field.name)) for field in fields(RolloutBatch)}
    return RolloutBatch(**parts | {"extras": parts["extras"] | {"group": group}})
