"""Any gymnasium environment with continuous actions as a VecSim.

Episodes are begun here, never by a wrapper: episode k of environment i starts from a seed made of (key of i, k), so a
run doesn't depend on E or on the number of processes, and the last observation of an episode is always the true one.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray, Seed, SimSpec, Step
from sims.checks import check_state, checked_action, checked_mask
from sims.cores import usable_cores
from sims.episode_book import EpisodeBook
from sims.gymnasium_batch import BatchEnvs
from sims.gymnasium_envs import Envs, LocalEnvs
from sims.gymnasium_facts import Facts, feature
from sims.gymnasium_make import EnvRecipe, registered
from sims.gymnasium_workers import WorkerEnvs

log = logging.getLogger(__name__)

VECTORIZATIONS = ("sync", "async", "vector")
ACTION_MODE = "native"


class GymnasiumVec:
    """``VecSim`` over gymnasium environments: see sims/base.py for the contract."""

    def __init__(
        self,
        env_id: str,
        num_envs: int = 8,
        *,
        vectorization: str = "sync",
        num_workers: int | None = None,
        step_timeout_s: float = 60.0,
        seed: int = 0,
        max_episode_steps: int | None = None,
        has_success: bool | None = None,
        maker: str | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """env_id: a registered id, or ``module:id``, or what ``maker`` understands.

        vectorization: ``sync`` steps in this process, ``async`` in ``num_workers`` others (default one per usable
        core), which pays where a step is slow; ``vector`` uses the id's own vector environment. step_timeout_s: after
        which a worker counts as hanging: its episodes end as diverged and it is started again. max_episode_steps:
        default the registered one. has_success: whether info tells ``is_success`` or ``success``; None: look after one
        step. maker: ``module:function`` called with (env_id, **env_kwargs) instead of ``gymnasium.make``. env_kwargs:
        for the environment.

        Raises ValueError for an unknown id, actions that aren't a Box, observations that can't be read, a missing time
        limit; ImportError where the environment needs a missing package.
        """
        check_settings(env_id, num_envs, vectorization, step_timeout_s)
        recipe = EnvRecipe(env_id, dict(env_kwargs or {}), maker)
        self._envs: Envs
        if vectorization == "vector":
            self._envs = BatchEnvs(recipe, num_envs, checked_limit(env_id, max_episode_steps, maker))
        else:
            self._envs = LocalEnvs(recipe, num_envs if vectorization == "sync" else 1)
        facts = self._envs.facts
        try:
            limit = checked_limit(env_id, facts.limit if max_episode_steps is None else max_episode_steps, maker)
            told = tells_success(self._envs, facts, num_envs) if has_success is None else has_success
            self._spec = describe(facts, env_id, limit, told)
        except BaseException:
            self._envs.close()
            raise
        if vectorization == "async":
            self._envs.close()
            workers = num_workers or usable_cores()
            self._envs = WorkerEnvs(recipe, num_envs, workers, facts=facts, timeout_s=step_timeout_s)
        if not told:
            log.info("%s reports no success: success is False everywhere, and returns are what counts", env_id)
        self._dtype = facts.action_space.dtype
        self._low, self._high = (np.reshape(b, -1) for b in (facts.action_space.low, facts.action_space.high))
        self._obs = {n: np.zeros((num_envs, *f.shape), f.dtype) for n, f in self._spec.observation.items()}
        self._success = np.zeros(num_envs, dtype=bool)
        self._book = EpisodeBook(num_envs)
        try:
            self.reset(seed)
        except BaseException:
            self.close()
            raise

    @property
    def num_envs(self) -> int:
        """E."""
        return self._book.num_envs

    @property
    def diverged_count(self) -> int:
        """Episodes ended by a non-finite observation or reward, or by an engine that gave up, since construction."""
        return self._book.diverged_count

    @property
    def spec(self) -> SimSpec:
        """Names, bounds, rates."""
        return self._spec

    @property
    def success(self) -> BoolArray:
        """[E] what info said about the current state; False after a reset, and where there is no success."""
        return self._success.copy()

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        """See ``VecSim.reset``."""
        rows = np.flatnonzero(checked_mask(mask, self.num_envs))
        self._book.reseed(seed, rows)
        self._begin(rows)
        return self.observe()

    def _begin(self, rows: NDArray[np.int64], *, ended: bool = False) -> None:
        """Start the next episode of each environment in ``rows``. ended: because the last one has come to its end."""
        while len(rows):
            seeds = [episode_seed(int(self._book.keys[row]), int(self._book.episode[row])) for row in rows]
            for name, first in self._envs.reset(rows.tolist(), seeds, ended=ended).items():
                self._obs[name][rows] = first
            self._book.begin(rows)
            self._success[rows] = False
            # A worker that failed meanwhile took the episodes of its other environments along.
            rows, ended = np.array(self._envs.lost, dtype=np.int64), True
            self._book.diverged_count += len(rows)

    def observe(self) -> dict[str, FloatArray]:
        """See ``VecSim.observe``."""
        return {name: array.copy() for name, array in self._obs.items()}

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        """See ``VecSim.step``. A diverged environment ends as terminated with reward 0; its last good observation is
        final_obs.
        """
        E = self.num_envs
        inside = np.clip(checked_action(action, E, self._spec), self._low, self._high).astype(self._dtype)
        active = checked_mask(mask, E)
        rows = np.flatnonzero(active)
        reward = np.zeros(E)
        terminated, truncated, diverged, silent = (np.zeros(E, dtype=bool) for _ in range(4))
        if len(rows):
            out = self._envs.step(rows.tolist(), inside[rows])
            bad = out.broken | ~np.isfinite(out.reward)
            for values in out.obs.values():
                bad |= ~np.isfinite(values).all(axis=tuple(range(1, values.ndim)))
            good = rows[~bad]
            for name, values in out.obs.items():
                self._obs[name][good] = values[~bad]
            reward[good] = out.reward[~bad]
            self._success[rows] = out.success & ~bad & self._spec.has_success
            terminated[rows], truncated[rows], diverged[rows] = out.terminated | bad, out.truncated, bad
            silent[list(self._envs.silent)] = True
            self._idle(np.flatnonzero(~active))
            # A worker ends the episodes of all its environments, those that stood still included.
            diverged[list(self._envs.lost)] = True
            terminated |= diverged
            self._report(np.flatnonzero(diverged))
        self._book.count(reward, active, diverged)
        truncated = ~terminated & (truncated | (active & (self._book.steps >= self._spec.max_episode_steps)))
        info = self._book.info(self._success & active, diverged)
        final_obs = obs = self.observe()
        done = terminated | truncated
        if (done | silent).any():
            self._begin(np.flatnonzero(done | silent), ended=True)
            obs = self.observe()
        return Step(obs, reward.astype(np.float32), terminated, truncated, final_obs, info)

    def _idle(self, rows: NDArray[np.int64]) -> None:
        """Where environments can't be left alone, see where those in ``rows`` are now."""
        if len(rows) and not self._spec.maskable:
            for name, values in self._envs.idle(rows.tolist()).items():
                self._obs[name][rows] = values

    def _report(self, rows: NDArray[np.int64]) -> None:
        if len(rows):
            log.warning("%s diverged in environments %s; their episodes end here", self._spec.name, rows.tolist())

    def state(self) -> dict[str, NDArray[Any]]:
        """See ``VecSim.state``; a RuntimeError where ``spec.restorable`` is False."""
        if not self._spec.restorable:
            raise RuntimeError(
                f"{self._spec.name} can't save its state: only gymnasium's own MuJoCo environments can (restorable)"
            )
        return {
            **self._book.state(),
            "success": self._success.copy(),
            **self._envs.snapshot(),
            **{f"obs_{name}": array.copy() for name, array in self._obs.items()},
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See ``VecSim.restore``; a state of another environment or number of them is a ValueError."""
        check_state(state, self.state())
        saved = {name: np.asarray(state[name]) for name in ("physics", "last_action", "fresh", "generator")}
        self._envs.resume(range(self.num_envs), saved)
        self._obs = {name: np.array(state[f"obs_{name}"]) for name in self._obs}
        self._book.restore(state)
        self._success = np.array(state["success"])

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        """See ``VecSim.render``; camera None is the scene's first one. RuntimeError where nothing can be drawn."""
        return self._envs.frame(env, camera, width, height)

    def close(self) -> None:
        """Close the environments and end the worker processes; callable twice."""
        self._envs.close()


def check_settings(env_id: str, num_envs: int, vectorization: str, step_timeout_s: float) -> None:
    """Raise ValueError for what can't be built, whatever the environment."""
    if num_envs < 1:
        raise ValueError(f"num_envs={num_envs}: at least one environment is needed")
    if not env_id:
        raise ValueError("env_id is empty: name an environment, for example env_id=Ant-v5")
    if vectorization not in VECTORIZATIONS:
        raise ValueError(f"unknown vectorization {vectorization!r}: known are {', '.join(VECTORIZATIONS)}")
    if not step_timeout_s > 0.0:
        raise ValueError(f"step_timeout_s={step_timeout_s}: must be positive")


def episode_seed(key: int, episode: int) -> int:
    """Seed of one episode, within the 32 bits that every environment accepts."""
    return int(np.random.SeedSequence((key, episode)).generate_state(1)[0])


def checked_limit(env_id: str, limit: int | None, maker: str | None) -> int:
    """``limit``, or the registered one. ValueError for an unknown id, and where there is no limit."""
    if limit is None and maker is None:
        limit = registered(env_id).max_episode_steps
    if limit is None:
        raise ValueError(f"{env_id} has no time limit of its own: give max_episode_steps")
    if limit < 1:
        raise ValueError(f"max_episode_steps={limit}: an episode needs at least one step")
    return limit


def tells_success(envs: Envs, facts: Facts, num_envs: int) -> bool:
    """Whether info speaks of success, after one step of the first environment."""
    rows = [0] if facts.maskable else list(range(num_envs))
    envs.reset(rows, rows)
    space = facts.action_space
    still = np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)
    return bool(envs.step(rows, np.repeat(still.reshape(1, -1), len(rows), axis=0)).said[0])


def describe(facts: Facts, env_id: str, limit: int, has_success: bool) -> SimSpec:
    """The spec that follows from ``facts``."""
    return SimSpec(
        name=env_id,
        engine="gymnasium",
        observation={entry.name: entry.feature for entry in facts.entries},
        action=feature(facts.action_space, "action", facts.action_names),
        action_mode=ACTION_MODE,
        control_hz=facts.control_hz,
        max_episode_steps=limit,
        restorable=facts.restorable,
        maskable=facts.maskable,
        independent=facts.independent,
        cameras=facts.cameras,
        has_success=has_success,
    )
