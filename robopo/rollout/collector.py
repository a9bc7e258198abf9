"""Runs a chunked policy in a vectorised simulator and returns on-policy batches.

One decision emits a chunk of H rows, of which the first Ta run. An environment whose episode ends inside the chunk
stops there (the simulator's mask leaves it untouched) and waits for the next decision. The reward of a decision is the
sum over the rows that ran, so the outer MDP of DPPO (arXiv 2409.00588) is the one that gamma discounts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopo.errors import ConfigError, ShapeError
from robopo.policies.base import Policy, PolicySpec
from robopo.rollout.fit import check_fits
from robopo.rollout.history import ObsHistory
from robopo.types import RolloutBatch
from sims.base import Seed, Step, VecSim

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode. length counts control steps; return_ is the undiscounted sum of rewards."""

    env: int
    return_: float
    length: int
    success: bool
    """The task was fulfilled at some step."""
    final_success: bool
    """The task was fulfilled at the last step."""
    diverged: bool = False
    """The simulator's state became non-finite or exploded."""


@dataclass(frozen=True, slots=True)
class RolloutStats:
    """What one ``collect`` did."""

    episodes: tuple[Episode, ...]
    decisions: int
    """T * E."""
    env_steps: int
    """Control steps that really ran, over all environments; masked ones don't count."""
    policy_s: float
    """Wall-clock seconds inside the policy."""
    sim_s: float
    """Wall-clock seconds inside the simulator."""
    total_s: float

    @property
    def successes(self) -> int:
        """Number of finished episodes that succeeded."""
        return sum(episode.success for episode in self.episodes)

    @property
    def diverged(self) -> int:
        """Number of episodes that ended because the physics broke."""
        return sum(episode.diverged for episode in self.episodes)

    @property
    def success_rate(self) -> float:
        """Share of the finished episodes that succeeded; NaN when none finished."""
        return self.successes / len(self.episodes) if self.episodes else float("nan")

    @property
    def mean_return(self) -> float:
        """Mean return of the finished episodes; NaN when none finished."""
        return sum(e.return_ for e in self.episodes) / len(self.episodes) if self.episodes else float("nan")

    @property
    def mean_length(self) -> float:
        """Mean length of the finished episodes in control steps; NaN when none finished."""
        return sum(e.length for e in self.episodes) / len(self.episodes) if self.episodes else float("nan")


class Collector:
    """Steps ``sim`` with ``policy``; episodes go on from one ``collect`` to the next."""

    def __init__(self, sim: VecSim, policy: Policy, *, device: torch.device | str = "cpu") -> None:
        """device: where the policy computes and where the batches lie."""
        check_fits(policy.spec, sim.spec)
        _check_maskable(sim, policy.spec)
        self.sim = sim
        self.policy = policy
        self.device = torch.device(device)
        self.stats: RolloutStats | None = None
        """Of the last ``collect``."""
        self.env_steps = 0
        """Control steps since construction (or since the run began, after a resume)."""
        spec, E = policy.spec, sim.num_envs
        self._history = ObsHistory(spec.obs, num_envs=E, obs_steps=spec.obs_steps)
        self._started = False
        self._first = np.ones(E, bool)  # the next decision opens an episode
        self._return = np.zeros(E)
        self._length = np.zeros(E, np.int64)
        self._success = np.zeros(E, bool)  # so far in the running episode
        self._finished: list[Episode] = []
        self._sim_s = self._policy_s = 0.0

    def reset(self, seed: Seed = None) -> None:
        """Start new episodes everywhere; unfinished ones are dropped. ``seed`` as in ``VecSim.reset``."""
        everywhere = np.ones(self.sim.num_envs, bool)
        self._history.reset(self.sim.reset(seed), everywhere)
        self._clear_episode(everywhere)
        self._started = True

    @torch.no_grad()
    def collect(self, num_decisions: int, generator: torch.Generator) -> RolloutBatch:
        """Run ``num_decisions`` (T) decisions in every environment. generator: of the policy's device."""
        if num_decisions < 1:
            raise ConfigError(f"num_decisions={num_decisions}: expected 1 or more")
        if not self._started:
            self.reset()
        begin, self._finished, self._sim_s, self._policy_s = time.perf_counter(), [], 0.0, 0.0
        steps_before = self.env_steps
        decisions = [self._decide(generator) for _ in range(num_decisions)]
        batch = _stack(decisions, self.device)
        self.stats = RolloutStats(
            episodes=tuple(self._finished),
            decisions=num_decisions * self.sim.num_envs,
            env_steps=self.env_steps - steps_before,
            policy_s=self._policy_s,
            sim_s=self._sim_s,
            total_s=time.perf_counter() - begin,
        )
        return batch

    def _decide(self, generator: torch.Generator) -> _Decision:
        """One decision: sample a chunk, run its rows, return what the learner needs."""
        first = self._first.copy()
        obs = self._history.torch(self.device)
        begin = time.perf_counter()
        chunk, chain = self.policy.sample_chain(obs, generator=generator)
        rows = chunk[:, : self.policy.spec.action_steps].to("cpu", torch.float32).numpy()  # [E, Ta, A]
        self._policy_s += time.perf_counter() - begin
        reward, terminated, truncated, next_obs = self._run_chunk(rows)
        return _Decision(obs, next_obs, chain.latents, chain.log_probs, reward, terminated, truncated, first)

    def _run_chunk(
        self, rows: NDArray[np.float32]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Tensor]]:
        """Rows [E, Ta, A] -> reward, terminated, truncated [E], and the true next observation, entries [E, To, D]."""
        E = self.sim.num_envs
        reward = np.zeros(E, np.float32)
        terminated, truncated, alive = np.zeros(E, bool), np.zeros(E, bool), np.ones(E, bool)
        opening: dict[str, NDArray[Any]] = {}  # first observations of the episodes that begin after this chunk
        for row in range(rows.shape[1]):
            begin = time.perf_counter()
            step = self.sim.step(np.ascontiguousarray(rows[:, row]), alive)
            self._sim_s += time.perf_counter() - begin
            self._history.push(step.final_obs, alive)
            reward += np.where(alive, step.reward, 0.0)
            self._account(step, alive)
            done = alive & (step.terminated | step.truncated)
            if done.any():
                terminated |= done & step.terminated
                truncated |= done & step.truncated
                _merge(opening, step.obs, done)
                alive = alive & ~done
                if not alive.any():
                    break
        next_obs = self._history.torch(self.device)
        ended = ~alive
        if ended.any():
            self._history.reset(opening, ended)
            self._clear_episode(ended)
        self._first = ended
        return reward, terminated, truncated, next_obs

    def _account(self, step: Step, alive: NDArray[np.bool_]) -> None:
        """Add one control step to the running episodes; file those that end with it."""
        self.env_steps += int(alive.sum())
        success = np.asarray(step.info["success"], bool) & alive
        diverged = np.asarray(step.info.get("diverged", np.zeros_like(alive)), bool)
        self._return += np.where(alive, step.reward, 0.0)
        self._length += alive
        self._success |= success
        for env in np.flatnonzero(alive & (step.terminated | step.truncated)).tolist():
            self._finished.append(
                Episode(
                    env=env,
                    return_=float(self._return[env]),
                    length=int(self._length[env]),
                    success=bool(self._success[env]),
                    final_success=bool(success[env]),
                    diverged=bool(diverged[env]),
                )
            )

    def _clear_episode(self, mask: NDArray[np.bool_]) -> None:
        self._return[mask], self._length[mask], self._success[mask] = 0.0, 0, False
        self._first = self._first | mask

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next batch, as arrays; the simulator's part only where it can be restored."""
        return {
            "started": self._started,
            "env_steps": self.env_steps,
            "first": self._first.copy(),
            "return": self._return.copy(),
            "length": self._length.copy(),
            "success": self._success.copy(),
            "history": self._history.state_dict(),
            "sim": dict(self.sim.state()) if self._started and self.sim.spec.restorable else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state_dict()``; with a simulator that can't be restored, from new episodes."""
        self.env_steps = int(state["env_steps"])
        if not state["started"]:
            return
        if state["sim"] is None:
            log.warning("%s can't restore its state: the resumed run starts from new episodes", self.sim.spec.name)
            self._started = False
            return
        if np.shape(state["first"]) != self._first.shape:
            raise ShapeError(
                f"the saved run had {np.size(state['first'])} environments, this one has {self.sim.num_envs}; "
                "resume with the same num_envs"
            )
        self.sim.restore(state["sim"])
        self._history.load_state_dict(state["history"])
        self._first, self._success = np.array(state["first"], bool), np.array(state["success"], bool)
        self._return, self._length = np.array(state["return"]), np.array(state["length"])
        self._started = True


@dataclass(frozen=True, slots=True)
class _Decision:
    """One row of a RolloutBatch, not yet stacked: tensors on the device, flags still in numpy."""

    obs: dict[str, Tensor]
    next_obs: dict[str, Tensor]
    latents: Tensor
    log_probs: Tensor
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    first: NDArray[np.bool_]


def _stack(decisions: list[_Decision], device: torch.device) -> RolloutBatch:
    """T rows -> tensors [T, E, ...] on ``device``; one transfer per numpy entry."""

    def upload(arrays: list[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).to(device)

    def entries(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

    return RolloutBatch(
        obs=entries([d.obs for d in decisions]),
        next_obs=entries([d.next_obs for d in decisions]),
        latents=torch.stack([d.latents for d in decisions]),
        log_probs=torch.stack([d.log_probs for d in decisions]),
        reward=upload([d.reward for d in decisions]),
        terminated=upload([d.terminated for d in decisions]),
        truncated=upload([d.truncated for d in decisions]),
        first=upload([d.first for d in decisions]),
    )


def _merge(target: dict[str, NDArray[Any]], source: Mapping[str, NDArray[Any]], mask: NDArray[np.bool_]) -> None:
    """Copy the rows of ``mask`` into ``target``: a simulator may reuse its arrays at the next step."""
    for key, value in source.items():
        if key in target:
            target[key][mask] = value[mask]
        else:
            target[key] = value.copy()


def _check_maskable(sim: VecSim, spec: PolicySpec) -> None:
    """Refuse a simulator that can't wait inside a chunk where an episode ends."""
    if spec.action_steps > 1 and not sim.spec.maskable:
        raise ConfigError(
            f"{sim.spec.name} ({sim.spec.engine}) can't mask environments, so a chunk of {spec.action_steps} rows "
            "can't stop where its episode ends; use action_steps=1 or a maskable simulator"
        )
