"""Gymnasium environments that do what a test tells them, importable by worker processes."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
from gymnasium.spaces import Box
from gymnasium.vector import AutoresetMode
from gymnasium.vector.utils import batch_space


class Faulty(gymnasium.Env[Any, Any]):
    """Counts its steps; an action above 0.9 makes it do what ``fault`` says, if the file ``once`` allows."""

    observation_space = Box(-np.inf, np.inf, (2,), np.float64)
    action_space = Box(-1.0, 1.0, (1,), np.float64)
    metadata: ClassVar[dict[str, Any]] = {"render_fps": 10}

    def __init__(self, fault: str, once: str = "") -> None:
        self.fault, self.once = fault, Path(once) if once else None

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.count, self.start = 0, self.np_random.random()
        return np.array([0.0, self.start]), {}

    def step(self, action: Any) -> Any:
        self.count += 1
        if action[0] > 0.9 and (self.once is None or not self.once.exists()):
            if self.once is not None:
                self.once.touch()
            match self.fault:
                case "raise":
                    raise ArithmeticError("the joints are tangled")
                case "hang":
                    time.sleep(600)
                case _:
                    os._exit(3)
        return np.array([self.count, self.start]), float(action[0]), False, False, {}


def make_faulty(env_id: str, **kwargs: Any) -> gymnasium.Env[Any, Any]:
    """A maker."""
    return gymnasium.wrappers.TimeLimit(Faulty(env_id, **kwargs), 50)


class Batch(gymnasium.vector.VectorEnv[Any, Any, Any]):
    """Environment i ends after ``ends[i]`` steps (terminated) or ``max_episode_steps`` (truncated).

    Shows [steps, random number of the episode]; rewards its action; succeeds at its second step.
    """

    def __init__(self, num_envs: int, max_episode_steps: int, mode: str, ends: Any, *, obeys_mask: bool = True) -> None:
        self.num_envs, self.limit, self.mode = num_envs, max_episode_steps, AutoresetMode[mode]
        self.ends, self.obeys_mask = np.asarray(ends)[:num_envs], obeys_mask
        self.metadata = {"autoreset_mode": self.mode, "render_fps": 10}
        self.single_observation_space = Box(-np.inf, np.inf, (2,), np.float64)
        self.single_action_space = Box(-1.0, 1.0, (1,), np.float64)
        self.observation_space = batch_space(self.single_observation_space, num_envs)
        self.action_space = batch_space(self.single_action_space, num_envs)
        self.rngs = [np.random.default_rng(i) for i in range(num_envs)]
        self.seen, self.done = np.zeros((num_envs, 2)), np.zeros(num_envs, dtype=bool)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        mask = np.ones(self.num_envs, dtype=bool)
        if self.obeys_mask and options and "reset_mask" in options:
            mask = options["reset_mask"]
        if isinstance(seed, int):
            seed = [seed + i for i in range(self.num_envs)]
        for i in np.flatnonzero(mask):
            if seed is not None:
                self.rngs[i] = np.random.default_rng(seed[i])
            self._begin(i)
        return self.seen.copy(), {}

    def _begin(self, i: int) -> None:
        self.seen[i], self.done[i] = (0.0, self.rngs[i].random()), False

    def step(self, actions: Any) -> Any:
        reward = np.asarray(actions, np.float64)[:, 0].copy()
        fresh = self.done & (self.mode == AutoresetMode.NEXT_STEP)
        for i in np.flatnonzero(fresh):
            self._begin(i)
        reward[fresh] = 0.0
        self.seen[~fresh, 0] += 1.0
        steps = self.seen[:, 0]
        terminated, truncated = steps == self.ends, (steps >= self.limit) & (steps != self.ends)
        self.done = terminated | truncated
        info: dict[str, Any] = {"success": steps == 2.0}
        if self.mode == AutoresetMode.SAME_STEP and self.done.any():
            final = np.full(self.num_envs, None, dtype=object)
            for i in np.flatnonzero(self.done):
                final[i] = self.seen[i].copy()
            ended = self.done.copy()
            info = {"success": (steps == 2.0) & ~ended, "_success": ~ended, "final_obs": final, "_final_obs": ended}
            info["final_info"] = {"success": steps == 2.0, "_success": ended}
            for i in np.flatnonzero(ended):
                self._begin(i)
        return self.seen.copy(), reward, terminated, truncated, info


for _mode in AutoresetMode:
    gymnasium.register(f"Batch{_mode.name.title().replace('_', '')}-v0", vector_entry_point=Batch, max_episode_steps=5)
