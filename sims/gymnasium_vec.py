"""Any registered gymnasium environment with continuous actions as a VecSim.

Episodes are begun here, never by a wrapper: episode k of environment i starts from a seed made of (key of i, k), so a
run doesn't depend on E or on the number of processes, and the last observation of an episode is always the true one.
"""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping
from typing import Any

import gymnasium
import mujoco
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from sims.base import BoolArray, Feature, FloatArray, Seed, SimSpec, Step
from sims.checks import check_state, checked_action, checked_mask
from sims.gymnasium_envs import EnvRecipe, LocalEnvs, WorkerEnvs
from sims.seeding import environment_keys

log = logging.getLogger(__name__)

VECTORIZATIONS = ("sync", "async")
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
        seed: int = 0,
        max_episode_steps: int | None = None,
        has_success: bool | None = None,
        env_kwargs: Mapping[str, Any] | None = None,
    ) -> None:
        """env_id: a registered id, or ``module:id``.

        vectorization: ``sync`` steps in this process, ``async`` in ``num_workers`` others (default one per usable
        core), which pays where a step is slow. max_episode_steps: default the registered one. has_success: whether
        info tells ``is_success`` or ``success``; None: look after one step. env_kwargs: for the environment.

        Raises ValueError for an unknown id, actions that aren't a Box, observations that aren't Boxes, a missing time
        limit; ImportError where the environment needs a missing package.
        """
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: at least one environment is needed")
        if vectorization not in VECTORIZATIONS:
            raise ValueError(f"unknown vectorization {vectorization!r}: known are {', '.join(VECTORIZATIONS)}")
        limit = time_limit(env_id) if max_episode_steps is None else max_episode_steps
        if limit < 1:
            raise ValueError(f"max_episode_steps={limit}: an episode needs at least one step")
        recipe = EnvRecipe(env_id, dict(env_kwargs or {}))
        local = LocalEnvs(recipe, num_envs if vectorization == "sync" else 1)
        try:
            self._spec = describe(local, env_id, limit, has_success)
            self._dtype = local.action_space.dtype
            self._low, self._high = (np.reshape(b, -1) for b in (local.action_space.low, local.action_space.high))
        except BaseException:
            local.close()
            raise
        self._envs: LocalEnvs | WorkerEnvs = local
        if vectorization == "async":
            local.close()
            self._envs = WorkerEnvs(recipe, num_envs, num_workers or usable_cores())
        if not self._spec.has_success:
            log.info("%s reports no success: success is False everywhere, and returns are what counts", env_id)
        self._allocate(num_envs)
        try:
            self.reset(seed)
        except BaseException:
            self.close()
            raise

    def _allocate(self, num_envs: int) -> None:
        sizes = {name: feature.shape[0] for name, feature in self._spec.observation.items()}
        self._obs = {name: np.zeros((num_envs, size), np.float32) for name, size in sizes.items()}
        self._success = np.zeros(num_envs, dtype=bool)
        self._keys = np.zeros(num_envs, dtype=np.uint64)
        self._episode = np.zeros(num_envs, dtype=np.int64)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._return = np.zeros(num_envs)
        self.diverged_count = 0
        """Episodes ended by a non-finite observation or reward, or by an engine that gave up, since construction."""

    @property
    def num_envs(self) -> int:
        """E."""
        return len(self._steps)

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
        if seed is not None:
            self._keys[rows] = environment_keys(seed, self.num_envs)[rows]
            self._episode[rows] = 0
        self._begin(rows)
        return self.observe()

    def _begin(self, rows: NDArray[np.int64]) -> None:
        """Start the next episode of each environment in ``rows``."""
        if len(rows) == 0:
            return
        seeds = [episode_seed(int(self._keys[row]), int(self._episode[row])) for row in rows]
        for name, first in self._envs.reset(rows.tolist(), seeds).items():
            self._obs[name][rows] = first
        self._episode[rows] += 1
        self._steps[rows], self._return[rows], self._success[rows] = 0, 0.0, False

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
        terminated, truncated, diverged = (np.zeros(E, dtype=bool) for _ in range(3))
        if len(rows):
            out = self._envs.step(rows.tolist(), inside[rows])
            bad = out.broken | ~np.isfinite(out.reward)
            for values in out.obs.values():
                bad |= ~np.isfinite(values).all(axis=1)
            good = rows[~bad]
            for name, values in out.obs.items():
                self._obs[name][good] = values[~bad]
            reward[good] = out.reward[~bad]
            self._success[rows] = out.success & ~bad & self._spec.has_success
            terminated[rows], truncated[rows], diverged[rows] = out.terminated | bad, out.truncated, bad
            self._report(rows[bad])
        self._steps += active
        self._return += reward
        truncated = ~terminated & (truncated | (active & (self._steps >= self._spec.max_episode_steps)))
        info = {
            "success": self._success & active,
            "diverged": diverged,
            "episode_return": self._return.copy(),
            "episode_length": self._steps.copy(),
        }
        final_obs = obs = self.observe()
        done = terminated | truncated
        if done.any():
            self._begin(np.flatnonzero(done))
            obs = self.observe()
        return Step(obs, reward.astype(np.float32), terminated, truncated, final_obs, info)

    def _report(self, rows: NDArray[np.int64]) -> None:
        if len(rows):
            self.diverged_count += len(rows)
            log.warning("%s diverged in environments %s; their episodes end here", self._spec.name, rows.tolist())

    def state(self) -> dict[str, NDArray[Any]]:
        """See ``VecSim.state``; a RuntimeError where ``spec.restorable`` is False."""
        if not self._spec.restorable:
            raise RuntimeError(
                f"{self._spec.name} can't save its state: only gymnasium's own MuJoCo environments can (restorable)"
            )
        return {
            **self._counters(),
            **self._envs.snapshot(),
            **{f"obs_{name}": array.copy() for name, array in self._obs.items()},
        }

    def _counters(self) -> dict[str, NDArray[Any]]:
        return {
            "keys": self._keys.copy(),
            "episode": self._episode.copy(),
            "steps": self._steps.copy(),
            "return": self._return.copy(),
            "success": self._success.copy(),
            "diverged_count": np.array(self.diverged_count),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See ``VecSim.restore``; a state of another environment or number of them is a ValueError."""
        check_state(state, self.state())
        saved = {name: np.asarray(state[name]) for name in ("physics", "last_action", "fresh", "generator")}
        self._envs.resume(range(self.num_envs), saved)
        self._obs = {name: np.array(state[f"obs_{name}"]) for name in self._obs}
        self._keys, self._episode = np.array(state["keys"]), np.array(state["episode"])
        self._steps, self._return = np.array(state["steps"]), np.array(state["return"])
        self._success, self.diverged_count = np.array(state["success"]), int(state["diverged_count"])

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        """See ``VecSim.render``; camera None is the scene's first one. RuntimeError where nothing can be drawn."""
        return self._envs.frame(env, camera, width, height)

    def close(self) -> None:
        """Close the environments and end the worker processes; callable twice."""
        self._envs.close()


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def episode_seed(key: int, episode: int) -> int:
    """Seed of one episode, within the 32 bits that every environment accepts."""
    return int(np.random.SeedSequence((key, episode)).generate_state(1)[0])


def time_limit(env_id: str) -> int:
    """The registered episode limit. ValueError for an unknown id, with near ones, or where there is none."""
    try:
        limit = gymnasium.spec(env_id).max_episode_steps
    except gymnasium.error.Error as error:
        close = difflib.get_close_matches(env_id, gymnasium.registry, n=3, cutoff=0.5)
        hint = f"; near: {', '.join(close)}" if close else "; is the package that registers it installed? (module:id)"
        raise ValueError(f"unknown env_id {env_id!r}{hint}") from error
    except ImportError as error:
        raise ImportError(f"{env_id}: its module can't be imported ({error})") from error
    if limit is None:
        raise ValueError(f"{env_id} has no time limit of its own: give max_episode_steps")
    return limit


def describe(local: LocalEnvs, env_id: str, limit: int, has_success: bool | None) -> SimSpec:
    """The spec, from the first environment; one step of it tells whether info speaks of success."""
    env, space = local.envs[0], local.action_space
    base: Any = env.unwrapped
    model = base.model if isinstance(getattr(base, "model", None), mujoco.MjModel) else None
    local.reset([0], [0])
    if has_success is None:
        still = np.clip(np.zeros(space.shape), space.low, space.high).astype(space.dtype)
        has_success = bool(local.step([0], still.reshape(1, -1)).said[0])
    observed = env.observation_space
    boxes: Any = {"state": observed} if not isinstance(observed, Dict) else observed.spaces
    names: tuple[str, ...] | None = None
    if model is not None and model.nu == np.prod(space.shape):
        names = tuple(model.actuator(i).name or f"actuator_{i}" for i in range(model.nu))
    return SimSpec(
        name=env_id,
        engine="gymnasium",
        observation={entry.name: feature(boxes[entry.name], entry.name) for entry in local.entries},
        action=feature(space, "action", names),
        action_mode=ACTION_MODE,
        control_hz=control_rate(env),
        max_episode_steps=limit,
        restorable=local.restorable,
        cameras=tuple(model.camera(i).name for i in range(model.ncam)) if model is not None else (),
        has_success=has_success,
    )


def feature(space: Box, name: str, names: tuple[str, ...] | None = None) -> Feature:
    """A Box, flattened; gymnasium tells no units."""
    size = int(np.prod(space.shape, dtype=np.int64))
    return Feature(
        shape=(size,),
        names=names or tuple(f"{name}_{i}" for i in range(size)),
        units=("",) * size,
        low=tuple(np.reshape(space.low, -1).astype(float).tolist()),
        high=tuple(np.reshape(space.high, -1).astype(float).tolist()),
    )


def control_rate(env: gymnasium.Env[Any, Any]) -> float:
    """Steps per second: 1 / dt where the environment has a dt, else the frame rate of its films, else 1 (unknown)."""
    dt = getattr(env.unwrapped, "dt", None)
    if isinstance(dt, float | int) and dt > 0:
        return float(round(1.0 / dt, 9))
    return float(env.metadata.get("render_fps") or 1.0)
