"""Several native tasks in one simulator: each episode of each environment draws its task.

Every task keeps E environments of its own; a control step advances, in each task, those that are doing it. What a task
shows is padded with zeros to the longest, and the entry ``task`` says which it is.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, Feature, FloatArray, Seed, SimSpec, Step
from sims.checks import check_state, checked_action, checked_mask
from sims.episode_book import EpisodeBook
from sims.mujoco_vec import MujocoVec
from sims.tasks.base import box_feature

STATE = "environment_state"
TASK = "task"


class MultiTaskVec:
    """``VecSim`` over several tasks of one arm: see sims/base.py for the contract."""

    def __init__(self, tasks: Sequence[str], num_envs: int = 64, *, seed: int = 0, **settings: Any) -> None:
        """tasks: names of native tasks, each once. settings: of ``MujocoVec``, the same for all of them.

        Raises ValueError for fewer than two tasks, or tasks that need different numbers of arms.
        """
        if len(tasks) < 2 or len(set(tasks)) != len(tasks):
            raise ValueError(f"tasks={list(tasks)}: expected two or more, each once")
        self._sims: list[MujocoVec] = []
        try:
            for name in tasks:
                self._sims.append(MujocoVec(name, num_envs, **settings))
            self._spec = _joint_spec([sim.spec for sim in self._sims])
            self._book = EpisodeBook(num_envs)
            self._task = np.zeros(num_envs, dtype=np.int64)
            self.reset(seed)
        except BaseException:
            self.close()
            raise

    @property
    def num_envs(self) -> int:
        """E."""
        return self._book.num_envs

    @property
    def spec(self) -> SimSpec:
        """Names, units, bounds, rates; ``tasks`` in the order of the entry ``task``."""
        return self._spec

    @property
    def task(self) -> NDArray[np.int64]:
        """[E] which task each environment is doing (don't write)."""
        return self._task

    @property
    def diverged_count(self) -> int:
        """Episodes ended by a non-finite or exploding state since construction."""
        return self._book.diverged_count

    @property
    def success(self) -> BoolArray:
        """[E] whether each environment's current state fulfils its task."""
        return np.stack([sim.success for sim in self._sims])[self._task, np.arange(self.num_envs)]

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        """See ``VecSim.reset``."""
        rows = np.flatnonzero(checked_mask(mask, self.num_envs))
        self._book.reseed(seed, rows)
        self._begin(rows)
        return self.observe()

    def _begin(self, rows: NDArray[np.int64]) -> None:
        """Draw a task for each of ``rows`` and start an episode of it; all from that environment's generator."""
        seeds = np.zeros(self.num_envs, dtype=np.int64)
        for row in rows.tolist():
            rng = self._book.generator(row)
            self._task[row], seeds[row] = rng.integers(len(self._sims)), rng.integers(2**31)
        for index, sim in enumerate(self._sims):
            mine = np.zeros(self.num_envs, dtype=bool)
            mine[rows] = self._task[rows] == index
            if mine.any():
                sim.reset(seeds, mine)
        self._book.begin(rows)

    def observe(self) -> dict[str, FloatArray]:
        """See ``VecSim.observe``."""
        return self._merged([sim.observe() for sim in self._sims])

    def _merged(self, parts: Sequence[Mapping[str, FloatArray]]) -> dict[str, FloatArray]:
        """Each environment's entries from the task that it is doing."""
        merged: dict[str, Any] = {}
        for name, feature in self._spec.observation.items():
            merged[name] = np.zeros((self.num_envs, *feature.shape), dtype=feature.dtype)
        for index, part in enumerate(parts):
            mine = self._task == index
            for name, entry in part.items():
                if name == STATE:
                    merged[name][mine, : entry.shape[1]] = entry[mine]
                else:
                    merged[name][mine] = entry[mine]
        merged[TASK][np.arange(self.num_envs), self._task] = 1.0
        return merged

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        """See ``VecSim.step``; info has besides ``task`` [E], the task of the episode that was stepped."""
        action, active = checked_action(action, self.num_envs, self._spec), checked_mask(mask, self.num_envs)
        steps = [sim.step(action, active & (self._task == index)) for index, sim in enumerate(self._sims)]
        rows = np.arange(self.num_envs)

        def chosen(arrays: Sequence[NDArray[Any]]) -> NDArray[Any]:
            return np.stack(arrays)[self._task, rows]

        reward = chosen([step.reward for step in steps])
        diverged, success = (chosen([step.info[name] for step in steps]) for name in ("diverged", "success"))
        self._book.count(reward, active, diverged)
        info = self._book.info(success, diverged) | {TASK: self._task.copy()}
        final_obs = self._merged([step.final_obs for step in steps])
        terminated, truncated = chosen([s.terminated for s in steps]), chosen([s.truncated for s in steps])
        obs, ended = final_obs, np.flatnonzero(terminated | truncated)
        if len(ended):
            self._begin(ended)
            obs = self.observe()
        return Step(obs, reward, terminated, truncated, final_obs, info)

    def state(self) -> dict[str, NDArray[Any]]:
        """See ``VecSim.state``."""
        parts = {f"{sim.spec.name}.{name}": array for sim in self._sims for name, array in sim.state().items()}
        return {**self._book.state(), "task": self._task.copy(), **parts}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See ``VecSim.restore``; a state of other tasks or another number of environments is a ValueError."""
        check_state(state, self.state())
        for sim in self._sims:
            prefix = f"{sim.spec.name}."
            sim.restore({name.removeprefix(prefix): x for name, x in state.items() if name.startswith(prefix)})
        self._task = np.array(state["task"])
        self._book.restore(state)

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        """See ``VecSim.render``."""
        return self._sims[self._task[env]].render(env, camera=camera, width=width, height=height)

    def close(self) -> None:
        """Close every task's simulator; callable twice."""
        for sim in self._sims:
            sim.close()


def _joint_spec(specs: Sequence[SimSpec]) -> SimSpec:
    first = specs[0]
    for spec in specs[1:]:
        if spec.action != first.action or spec.observation["state"] != first.observation["state"]:
            raise ValueError(f"{first.name} and {spec.name} need different arms: they can't share a policy's actions")
    longest = max(spec.observation[STATE].shape[0] for spec in specs)
    state = box_feature(tuple(f"{STATE}_{i}" for i in range(longest)), ("",) * longest, 2.0)
    count = len(specs)
    which = Feature((count,), tuple(spec.name for spec in specs), ("1",) * count, (0.0,) * count, (1.0,) * count)
    return dataclasses.replace(
        first,
        name="multi_task",
        observation={**first.observation, STATE: state, TASK: which},
        max_episode_steps=max(spec.max_episode_steps for spec in specs),
        instruction="",
        tasks={spec.name: spec.instruction for spec in specs},
        cameras=tuple(camera for camera in first.cameras if all(camera in spec.cameras for spec in specs)),
    )
