"""Vine sampling: a plain rollout, and several continuations from some of its states.

Trust Region Policy Optimization (Schulman et al. 2015, arXiv 1502.05477, section 5.2) with the sets of Polychromic PPO
(arXiv 2509.25424). It needs a simulator that restores its state: no arm can go back.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopo.errors import ConfigError, ShapeError, did_you_mean
from robopo.losses.polychromic import cluster_labels
from robopo.policies.base import Policy
from robopo.rollout.episodes import RolloutStats
from robopo.rollout.runner import ChunkRunner, Decision, stack
from robopo.types import RolloutBatch
from sims.base import Seed, VecSim


@dataclass(frozen=True, slots=True)
class PathSignature:
    """When two continuations count as two ways of doing it: clusters of what one observation went through."""

    key: str = "state"
    """Observation that is followed; one that the policy sees."""
    elements: tuple[int, ...] = ()
    """Which of its numbers, such as the three of the end effector's position; empty: all."""
    waypoints: int = 1
    """Points along the path, evenly spaced in decisions; the last one is its end. 1 or more, 1: the end alone."""
    radius: float = 0.05
    """Paths whose waypoints are all this close are one way, and so are chains of them; more than 0, in the units of
    the observation."""

    def __post_init__(self) -> None:
        # Hydra hands over a list.
        object.__setattr__(self, "elements", tuple(int(element) for element in self.elements))
        if self.waypoints < 1:
            raise ConfigError(f"waypoints={self.waypoints}: expected 1 or more")
        if not self.radius > 0.0:
            raise ConfigError(f"radius={self.radius}: expected more than 0")


@dataclass(frozen=True, slots=True)
class VineConfig:
    """The size of the vine; continuations cost states * continuations * their length in control steps."""

    states: int = 2
    """p, decisions of the rollout from which continuations start; 1 or more, at most T."""
    continuations: int = 8
    """N, from each of these states; 2 or more."""
    sets: int = 4
    """M, random sets of continuations; 2 or more, since a set is judged by the mean of all."""
    set_size: int = 4
    """n, members of a set; 2 to N."""
    max_decisions: int = 50
    """A continuation runs to the end of its episode, or is cut after so many decisions; 1 or more."""
    signature: PathSignature = field(default_factory=PathSignature)
    """What tells continuations apart."""

    def __post_init__(self) -> None:
        for name, least in (("states", 1), ("continuations", 2), ("sets", 2), ("max_decisions", 1)):
            if getattr(self, name) < least:
                raise ConfigError(f"{name}={getattr(self, name)}: expected {least} or more")
        if not 2 <= self.set_size <= self.continuations:
            raise ConfigError(f"set_size={self.set_size}: expected 2 to continuations={self.continuations}")


class VineCollector:
    """A Collector that also goes back to ``states`` decisions of its rollout and draws continuations from there.

    The plain rollout is bit for bit that of a Collector, in this and in every following ``collect``: the vine draws
    from a generator of its own, and the simulator is put back afterwards. ``stats.episodes`` are those of the plain
    rollout; ``env_steps`` count everything.

    Rows [0, T) of the batch are the plain rollout, then come the continuations one after the other. Where one ends or
    is cut, and at the end of the plain rows, ``truncated`` is set, so that no trace runs across a joint; a continuation
    opens with ``first``, so that running returns start again. Extras: ``use`` [T', E] bool, False where an environment
    waits for the others; ``vine`` [T', E] long, s * N + j for continuation j of state s and -1 for the plain rows;
    ``vine_step`` [T', E] long, the decision within the continuation; ``vine_label`` [p, N, E] long, equal for the same
    way of doing it; ``vine_sets`` [p, M, n, E] long, numbers below N.
    """

    def __init__(
        self,
        sim: VecSim,
        policy: Policy,
        config: VineConfig,
        *,
        seed: int,
        device: torch.device | str = "cpu",
        also: Collection[str] = (),
    ) -> None:
        """seed: of the vine's own generator. also: as in Collector."""
        spec = sim.spec
        if not (spec.restorable and spec.maskable):
            lacking = "restore its state" if not spec.restorable else "mask environments"
            raise ConfigError(
                f"{spec.name} ({spec.engine}) can't {lacking}, so no continuations can be drawn from a state; "
                "use another simulator or an advantage with rollout 'plain'"
            )
        self._runner = ChunkRunner(sim, policy, device=device, also=also)
        self.sim, self.policy, self.config, self.device = sim, policy, config, self._runner.device
        self.stats: RolloutStats | None = None
        """Of the last ``collect``."""
        self._elements = _elements(config.signature, policy)
        self._generator = torch.Generator(device=self.device).manual_seed(seed)

    @property
    def env_steps(self) -> int:
        """Control steps since construction (or since the run began, after a resume)."""
        return self._runner.env_steps

    def reset(self, seed: Seed = None) -> None:
        """Start new episodes everywhere; unfinished ones are dropped. ``seed`` as in ``VecSim.reset``."""
        self._runner.reset(seed)

    @torch.no_grad()
    def collect(self, num_decisions: int, generator: torch.Generator) -> RolloutBatch:
        """Run ``num_decisions`` (T) plain decisions, and the vine. generator: of the policy's device, for these."""
        c, runner, E = self.config, self._runner, self.sim.num_envs
        if num_decisions < c.states:
            raise ConfigError(
                f"num_decisions={num_decisions}: expected at least states={c.states}, the decisions that the vine "
                "starts from"
            )
        if not runner.started:
            runner.reset()
        runner.begin()
        draw = torch.randperm(num_decisions, generator=self._generator, device=self.device)
        chosen = sorted(draw[: c.states].tolist())
        saved: list[dict[str, Any]] = []
        rows: list[Decision] = []
        for number in range(num_decisions):
            if number in chosen:
                saved.append(runner.state_dict())
            rows.append(runner.decide(generator))
        episodes, here = runner.finished.copy(), runner.state_dict()
        rows[-1] = _joint(rows[-1])
        use = [np.ones(E, bool)] * num_decisions
        vine, step = [-1] * num_decisions, list(range(num_decisions))
        points: list[Tensor] = []  # [E, P, D] of each continuation
        for number in range(c.states * c.continuations):
            more, active = self._continuation(saved[number // c.continuations])
            points.append(self._waypoints(more, active))
            rows, use = rows + more, use + active
            vine, step = vine + [number] * len(more), step + list(range(len(more)))
        runner.rewind(here)
        runner.finished = episodes
        used = np.stack(use)  # [T', E]
        self.stats = runner.summary(int(used.sum()))
        extras = {
            "use": torch.from_numpy(used).to(self.device),
            "vine": torch.tensor(vine, device=self.device)[:, None].expand(-1, E).contiguous(),
            "vine_step": torch.tensor(step, device=self.device)[:, None].expand(-1, E).contiguous(),
            "vine_label": self._labels(points),
            "vine_sets": self._draw_sets(),
        }
        return replace(stack(rows, self.device), extras=extras)

    def _continuation(self, start: Mapping[str, Any]) -> tuple[list[Decision], list[NDArray[np.bool_]]]:
        """Run all environments on from ``start`` until their episodes end: the decisions, and who took them [E]."""
        self._runner.rewind(start)
        rows: list[Decision] = []
        use: list[NDArray[np.bool_]] = []
        active = np.ones(self.sim.num_envs, bool)
        while active.any() and len(rows) < self.config.max_decisions:
            rows.append(self._runner.decide(self._generator, active))
            use.append(active)
            active = active & ~(rows[-1].terminated | rows[-1].truncated)
        rows[0] = replace(rows[0], first=np.ones_like(active))
        rows[-1] = _joint(rows[-1])
        return rows, use

    def _waypoints(self, rows: list[Decision], use: list[NDArray[np.bool_]]) -> Tensor:
        """[E, P, D] where each environment was after 1/P, 2/P, ... of the decisions of its continuation."""
        count = self.config.signature.waypoints
        path = torch.stack([row.next_obs[self.config.signature.key][:, -1] for row in rows])[..., self._elements]
        length = torch.from_numpy(np.stack(use).sum(0)).to(self.device)  # [E]
        part = torch.arange(1, count + 1, device=self.device)[:, None]
        after = (part * length + count - 1) // count - 1  # ceil(k L / P) - 1, [P, E]
        return path.gather(0, after[..., None].expand(-1, -1, path.shape[-1])).movedim(0, 1)

    def _labels(self, points: list[Tensor]) -> Tensor:
        """[p, N, E] clusters among the N continuations of each state and environment."""
        per_state = torch.stack(points).unflatten(0, (self.config.states, self.config.continuations))
        return torch.stack([cluster_labels(p, radius=self.config.signature.radius) for p in per_state])

    def _draw_sets(self) -> Tensor:
        """[p, M, n, E] members of random sets, without repetition within one."""
        c = self.config
        shape = (c.states, c.sets, c.continuations, self.sim.num_envs)
        return torch.rand(shape, generator=self._generator, device=self.device).argsort(dim=2)[:, :, : c.set_size]

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next batch, as arrays."""
        return {"runner": self._runner.state_dict(), "vine_generator": self._generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state_dict()``."""
        if "vine_generator" not in state:
            raise ConfigError("the saved run collected no vine; resume with the advantage it was started with")
        self._runner.load_state_dict(state["runner"])
        self._generator.set_state(state["vine_generator"])


def _joint(row: Decision) -> Decision:
    """The last row before others that don't follow from it: whoever hasn't terminated is truncated."""
    return replace(row, truncated=row.truncated | ~row.terminated)


def _elements(signature: PathSignature, policy: Policy) -> list[int]:
    """The numbers of the observation that the signature follows, checked."""
    obs = policy.spec.obs
    if signature.key not in obs:
        raise ConfigError(f"signature.key={signature.key!r} is no observation{did_you_mean(signature.key, obs)}")
    size = obs[signature.key]
    if any(not 0 <= element < size for element in signature.elements):
        raise ShapeError(f"signature.elements={signature.elements}: {signature.key!r} has elements 0 to {size - 1}")
    return list(signature.elements) or list(range(size))
