"""robosuite's manipulation tasks as a VecSim, with the keys, orders and action scaling of robomimic's datasets.

Worker processes step the environments. Episode k of environment i is decided by (key of i, k) alone: not by E, by the
number of workers, or by which of them steps it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray, Seed, SimSpec, Step
from sims.checks import check_state, checked_action, checked_mask
from sims.cores import usable_cores
from sims.episode_book import EpisodeBook
from sims.robosuite_env import Recipe, RobosuiteEnv, require_robosuite
from sims.robosuite_pool import WorkerPool
from sims.robosuite_tasks import ARM_ACTIONS, describe, entry_parts, find_task, robot_parts
from sims.robosuite_worker import MakeEnv, Sizes

log = logging.getLogger(__name__)


class RobosuiteVec:
    """``VecSim`` over robosuite 1.5.2: see sims/base.py for the contract."""

    make_env: ClassVar[MakeEnv] = RobosuiteEnv
    """Builds a worker's environment; another one in tests of faults."""

    def __init__(  # noqa: PLR0913  each is a key of configs/sim/robosuite_*.yaml
        self,
        task: str = "PickPlaceCan",
        num_envs: int = 16,
        *,
        num_workers: int | None = None,
        seed: int = 0,
        max_episode_steps: int | None = None,
        dense_reward: bool = False,
        terminate_on_success: bool = True,
        separate_keys: bool = False,
        step_timeout_s: float = 20.0,
        cameras: Sequence[str] = (),
        image_size: tuple[int, int] | Sequence[int] = (84, 84),
    ) -> None:
        """task: a robosuite class name or robomimic's short one (``can``). num_workers: default one per usable core.

        dense_reward: robosuite's shaped reward; else 1 on success. separate_keys: robomimic's keys as entries of their
        own (``robot0_eef_pos``, ..., ``object``) instead of ``state`` and ``environment_state``, which join them in
        that order. step_timeout_s: a worker that takes longer for one environment is replaced. cameras: names whose
        pictures ``image_size`` (height, width) are observed as ``image_<camera>``.

        Raises ImportError without robosuite, ValueError for an unknown task or camera.
        """
        known = find_task(task)
        limit = known.max_episode_steps if max_episode_steps is None else max_episode_steps
        height, width = (int(length) for length in image_size)
        for name, value in (("num_envs", num_envs), ("max_episode_steps", limit), ("image_size", min(height, width))):
            if value < 1:
                raise ValueError(f"{name}={value}: expected at least 1")
        if num_workers is not None and num_workers < 1:
            raise ValueError(f"num_workers={num_workers}: expected at least 1, or None for one per usable core")
        if not step_timeout_s > 0:
            raise ValueError(f"step_timeout_s={step_timeout_s}: expected seconds, more than 0")
        if dense_reward and not known.dense:
            raise ValueError(f"robosuite has no shaped reward for {known.env_name}: leave dense_reward=False")
        require_robosuite()
        pictures = tuple(cameras)
        sizes = Sizes(
            num_envs=num_envs,
            num_workers=min(num_workers or usable_cores(), num_envs),
            action=known.num_arms * ARM_ACTIONS,
            picture=len(pictures) * height * width * 3,
        )
        recipe = Recipe(known, dense_reward, pictures, (height, width))
        self.terminate_on_success = terminate_on_success
        self.pool = WorkerPool(type(self).make_env, recipe, sizes, step_timeout_s=step_timeout_s)
        try:
            self._describe(recipe, separate=separate_keys, limit=limit)
            self._book = EpisodeBook(num_envs)
            self._obs = {
                name: np.zeros((num_envs, *feature.shape), feature.dtype)
                for name, feature in self._spec.observation.items()
            }
            self._success = np.zeros(num_envs, dtype=bool)
            self.reset(seed)
        except BaseException:
            self.close()
            raise

    def _describe(self, recipe: Recipe, *, separate: bool, limit: int) -> None:
        layout, task = self.pool.layout, recipe.task
        unknown = [camera for camera in recipe.pictures if camera not in layout.cameras]
        if unknown:
            raise ValueError(f"{task.env_name} has no camera {unknown[0]!r}: known are {', '.join(layout.cameras)}")
        self._spec = describe(
            task,
            layout.sensors,
            separate=separate,
            limit=limit,
            pictures=recipe.pictures,
            image_size=recipe.image_size,
            cameras=layout.cameras,
        )
        ends: dict[str, slice] = {}
        start = 0
        for key, size in robot_parts(task.num_arms):
            ends[key] = slice(start, start + size)
            start += size
        ends["object"] = slice(start, layout.obs_size)
        self._columns = {
            entry: slice(ends[keys[0]].start, ends[keys[-1]].stop)
            for entry, keys in entry_parts(task.num_arms, separate=separate).items()
        }
        self._pictures, self._image_size = recipe.pictures, recipe.image_size

    @property
    def num_envs(self) -> int:
        """E."""
        return self._book.num_envs

    @property
    def spec(self) -> SimSpec:
        """Names, units, bounds, rates."""
        return self._spec

    @property
    def diverged_count(self) -> int:
        """Episodes ended by exploding physics, an error inside robosuite or a lost worker, since construction."""
        return self._book.diverged_count

    @property
    def success(self) -> BoolArray:
        """[E] robosuite's check of the current state; False after a reset."""
        return self._success.copy()

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        """See ``VecSim.reset``."""
        rows = np.flatnonzero(checked_mask(mask, self.num_envs))
        self._book.reseed(seed, rows)
        self._begin(rows)
        return self.observe()

    def _begin(self, rows: NDArray[np.int64]) -> None:
        """Start the next episode of each environment in ``rows``."""
        if len(rows) == 0:
            return
        seeds = [int(self._book.generator(row).integers(1 << 32)) for row in rows.tolist()]
        self.pool.reset(rows, seeds)
        self._take(rows)
        self._book.begin(rows)
        self._success[rows] = False

    def _take(self, rows: NDArray[np.int64]) -> None:
        """Copy the observations of ``rows`` out of shared memory."""
        shared, (height, width) = self.pool.shared, self._image_size
        for entry, columns in self._columns.items():
            self._obs[entry][rows] = shared.obs[rows, columns]
        if self._pictures:
            frames = shared.picture[rows].reshape(len(rows), len(self._pictures), height, width, 3)
            for index, camera in enumerate(self._pictures):
                self._obs[f"image_{camera}"][rows] = frames[:, index]

    def observe(self) -> dict[str, FloatArray]:
        """See ``VecSim.observe``."""
        return {name: array.copy() for name, array in self._obs.items()}

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        """See ``VecSim.step``. Where physics explode, robosuite raises, or a worker dies or hangs, the episode ends as
        diverged: terminated, reward 0, the last good observation as final_obs. RuntimeError where workers are lost
        several times in a row.
        """
        E, shared = self.num_envs, self.pool.shared
        inside = np.clip(checked_action(action, E, self._spec), -1.0, 1.0)
        active = checked_mask(mask, E)
        rows = np.flatnonzero(active)
        reward, diverged = np.zeros(E), np.zeros(E, dtype=bool)
        if len(rows):
            shared.action[rows] = inside[rows]
            troubles = self.pool.step(rows)
            diverged[list(troubles)] = True
            self._report(troubles)
            good = rows[~diverged[rows]]
            self._take(good)
            reward[good] = shared.reward[good]
            self._success[rows] = False
            self._success[good] = shared.success[good] > 0
        self._book.count(reward, active, diverged)
        success = self._success & active
        terminated = diverged | (success & self.terminate_on_success)
        truncated = active & ~terminated & (self._book.steps >= self._spec.max_episode_steps)
        info = self._book.info(success, diverged)
        final_obs = obs = self.observe()
        done = terminated | truncated
        if done.any():
            self._begin(np.flatnonzero(done))
            obs = self.observe()
        return Step(obs, reward.astype(np.float32), terminated, truncated, final_obs, info)

    def _report(self, troubles: Mapping[int, str]) -> None:
        for row, message in list(troubles.items())[:3]:
            log.warning("%s: the episode of environment %d ends here: %s", self._spec.name, row, message)

    def state(self) -> dict[str, NDArray[Any]]:
        """See ``VecSim.state``. ``physics`` [E, S] is MuJoCo's integration state and all that robosuite adds to it."""
        return {
            **self._book.state(),
            "physics": self.pool.shared.state[:, : self.pool.layout.state_size].copy(),
            "success": self._success.copy(),
            **{f"obs_{name}": array.copy() for name, array in self._obs.items()},
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See ``VecSim.restore``; a state of another task or number of environments is a ValueError."""
        check_state(state, self.state())
        self._book.restore(state)
        self.pool.shared.state[:, : self.pool.layout.state_size] = state["physics"]
        self._success = np.array(state["success"])
        self._obs = {name: np.array(state[f"obs_{name}"]) for name in self._obs}

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        """See ``VecSim.render``; camera None is ``agentview``. Drawn by a worker."""
        return self.pool.frame(env, camera, width, height)

    def close(self) -> None:
        """End the worker processes; callable twice, also after Ctrl-C."""
        self.pool.close()
