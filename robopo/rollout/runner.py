"""Runs a chunked policy in a vectorised simulator, one decision at a time.

One decision emits a chunk of H rows, of which the first Ta run. An environment whose episode ends inside the chunk
stops there (the simulator's mask leaves it untouched, or idle where it can't) and waits for the next decision. The
reward of a decision is the sum over the rows that ran, so the outer MDP of DPPO (arXiv 2409.00588) is the one that
gamma discounts.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopo.errors import ShapeError
from robopo.policies.base import Policy
from robopo.rollout.episodes import Episode, RolloutStats
from robopo.rollout.fit import check_fits
from robopo.rollout.history import ObsHistory
from robopo.types import DenoisingChain, RolloutBatch
from sims.base import Seed, Step, VecSim

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Decision:
    """One row of a RolloutBatch, not yet stacked: tensors on the device, flags and reward [E] still in numpy."""

    obs: dict[str, Tensor]
    next_obs: dict[str, Tensor]
    chain: DenoisingChain
    reward: NDArray[np.float32]
    terminated: NDArray[np.bool_]
    truncated: NDArray[np.bool_]
    first: NDArray[np.bool_]


class ChunkRunner:
    """What the collectors share: the simulator, the policy's view of it, the running episodes and their log."""

    def __init__(self, sim: VecSim, policy: Policy, *, device: torch.device | str, also: Collection[str] = ()) -> None:
        """device: where the policy computes and where decisions lie (pictures stay on the host).

        also: further observation entries that decisions keep, for a critic that knows more than the policy.
        """
        check_fits(policy.spec, sim.spec)
        self.sim, self.policy, self.device = sim, policy, torch.device(device)
        self.env_steps = 0
        """Control steps since construction (or since the run began, after a resume)."""
        self.finished: list[Episode] = []
        """Episodes that ended since ``begin``."""
        self.started = False
        spec, E = policy.spec, sim.num_envs
        self._history = ObsHistory.of(spec, sim.spec, E, also)
        self._first = np.ones(E, bool)  # the next decision opens an episode
        self._return = np.zeros(E)
        self._length = np.zeros(E, np.int64)
        self._success = np.zeros(E, bool)  # so far in the running episode
        self.begin()

    def begin(self) -> None:
        """Start the log of one ``collect``."""
        self._began, self._steps_before = time.perf_counter(), self.env_steps
        self.finished, self._sim_s, self._policy_s = [], 0.0, 0.0

    def summary(self, decisions: int) -> RolloutStats:
        """The log since ``begin``."""
        return RolloutStats(
            episodes=tuple(self.finished),
            decisions=decisions,
            env_steps=self.env_steps - self._steps_before,
            policy_s=self._policy_s,
            sim_s=self._sim_s,
            total_s=time.perf_counter() - self._began,
            has_success=self.sim.spec.has_success,
        )

    def reset(self, seed: Seed = None, mask: NDArray[np.bool_] | None = None) -> None:
        """Start new episodes where ``mask`` [E] (default: everywhere); unfinished ones are dropped.

        seed: as in ``VecSim.reset``.
        """
        chosen = np.ones(self.sim.num_envs, bool) if mask is None else mask
        self._history.reset(self.sim.reset(seed, mask), chosen)
        self._clear_episode(chosen)
        self.started = True

    @torch.no_grad()
    def decide(self, generator: torch.Generator, active: NDArray[np.bool_] | None = None) -> Decision:
        """One decision: sample a chunk, run its rows, return what the learner needs.

        active [E]: environments outside it are left as they are; their reward is 0 and their flags are False.
        generator: of the policy's device; it draws for all environments, whatever is active.
        """
        first = self._first.copy()
        active = np.ones(self.sim.num_envs, bool) if active is None else active
        obs = self._history.torch(self.device)
        begin = time.perf_counter()
        chunk, chain = self.policy.sample_chain(obs, generator=generator)
        rows = chunk[:, : self.policy.spec.action_steps].to("cpu", torch.float32).numpy()  # [E, Ta, A]
        self._policy_s += time.perf_counter() - begin
        reward, terminated, truncated, next_obs = self._run_chunk(rows, active)
        return Decision(obs, next_obs, chain, reward, terminated, truncated, first & active)

    def _run_chunk(
        self, rows: NDArray[np.float32], active: NDArray[np.bool_]
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.bool_], dict[str, Tensor]]:
        """Rows [E, Ta, A] -> reward, terminated, truncated [E], and the true next observation, entries [E, To, D]."""
        E = self.sim.num_envs
        reward = np.zeros(E, np.float32)
        terminated, truncated, alive = np.zeros(E, bool), np.zeros(E, bool), active.copy()
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
        ended = active & ~alive
        self._first = np.where(active, False, self._first)
        if ended.any():
            # Where those that wait can't be left untouched, they have idled since: look again.
            self._history.reset(opening if self.sim.spec.maskable else self.sim.observe(), ended)
            self._clear_episode(ended)
        return reward, terminated, truncated, next_obs

    def cut(self, mask: NDArray[np.bool_]) -> None:
        """File the running episodes of ``mask`` [E] as finished here, with what they have so far."""
        success = np.asarray(self.sim.success, bool)
        for env in np.flatnonzero(mask).tolist():
            self._file(env, final_success=bool(success[env]), diverged=False)

    def _account(self, step: Step, alive: NDArray[np.bool_]) -> None:
        """Add one control step to the running episodes; file those that end with it."""
        self.env_steps += int(alive.sum())
        success = np.asarray(step.info["success"], bool) & alive
        diverged = np.asarray(step.info.get("diverged", np.zeros_like(alive)), bool)
        self._return += np.where(alive, step.reward, 0.0)
        self._length += alive
        self._success |= success
        for env in np.flatnonzero(alive & (step.terminated | step.truncated)).tolist():
            self._file(env, final_success=bool(success[env]), diverged=bool(diverged[env]))

    def _file(self, env: int, *, final_success: bool, diverged: bool) -> None:
        self.finished.append(
            Episode(
                env=env,
                return_=float(self._return[env]),
                length=int(self._length[env]),
                success=bool(self._success[env]),
                final_success=final_success,
                diverged=diverged,
            )
        )

    def _clear_episode(self, mask: NDArray[np.bool_]) -> None:
        self._return[mask], self._length[mask], self._success[mask] = 0.0, 0, False
        self._first = self._first | mask

    def state_dict(self) -> dict[str, Any]:
        """Everything that decides the next decision, as arrays; the simulator's part only where it can be restored."""
        return {
            "started": self.started,
            "env_steps": self.env_steps,
            "first": self._first.copy(),
            "return": self._return.copy(),
            "length": self._length.copy(),
            "success": self._success.copy(),
            "history": self._history.state_dict(),
            "sim": dict(self.sim.state()) if self.started and self.sim.spec.restorable else None,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state_dict()``; with a simulator that can't be restored, from new episodes."""
        self.env_steps = int(state["env_steps"])
        if not state["started"]:
            return
        if state["sim"] is None:
            log.warning("%s can't restore its state: the resumed run starts from new episodes", self.sim.spec.name)
            self.started = False
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
        self.started = True

    def rewind(self, state: Mapping[str, Any]) -> None:
        """Go back to ``state_dict()`` of this run; the steps since then stay counted."""
        steps = self.env_steps
        self.load_state_dict(state)
        self.env_steps = steps


def stack(decisions: list[Decision], device: torch.device) -> RolloutBatch:
    """T rows -> tensors [T, E, ...] on ``device``; one transfer per numpy entry."""

    def upload(arrays: list[NDArray[Any]]) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).to(device)

    def entries(rows: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {key: torch.stack([row[key] for row in rows]) for key in rows[0]}

    def optional(rows: list[Tensor | None]) -> Tensor | None:
        present = [row for row in rows if row is not None]
        return torch.stack(present) if len(present) == len(rows) else None

    chains = [d.chain for d in decisions]
    return RolloutBatch(
        obs=entries([d.obs for d in decisions]),
        next_obs=entries([d.next_obs for d in decisions]),
        latents=torch.stack([chain.latents for chain in chains]),
        log_probs=torch.stack([chain.log_probs for chain in chains]),
        reward=upload([d.reward for d in decisions]),
        terminated=upload([d.terminated for d in decisions]),
        truncated=upload([d.truncated for d in decisions]),
        first=upload([d.first for d in decisions]),
        means=optional([chain.means for chain in chains]),
        stds=optional([chain.stds for chain in chains]),
        active=optional([chain.active for chain in chains]),
    )


def _merge(target: dict[str, NDArray[Any]], source: Mapping[str, NDArray[Any]], mask: NDArray[np.bool_]) -> None:
    """Copy the rows of ``mask`` into ``target``: a simulator may reuse its arrays at the next step."""
    for key, value in source.items():
        if key in target:
            target[key][mask] = value[mask]
        else:
            target[key] = value.copy()
