"""Isaac Lab with Newton's physics as a VecSim: kit-less, headless, on the CPU or CUDA.

``reach``, ``lift`` and the like are the native tasks in another physics; everything else is an environment written for
Isaac Lab. There is one live environment per process.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray, Seed, SimSpec, Step
from sims.checks import checked_action, checked_mask
from sims.episode_book import EpisodeBook
from sims.isaaclab_cameras import CameraOptions
from sims.isaaclab_engine import check_free, load, quietly

log = logging.getLogger(__name__)


class IsaacTask(Protocol):
    """One environment behind ``IsaacLabVec``: ArmTask or ForeignTask."""

    env: Any
    book: EpisodeBook
    active: BoolArray
    """[E] set before each step: the others idle."""
    diverged: BoolArray
    """[E] of the last step, where the task itself looks; the adapter looks for non-finite numbers besides."""

    def spec(self) -> SimSpec: ...

    def seed(self, seed: Seed, rows: NDArray[np.int64]) -> None: ...

    def hold(self) -> FloatArray: ...

    def entries(self, obs: Mapping[str, Any]) -> dict[str, FloatArray]: ...

    def success(self) -> BoolArray: ...

    def last_success(self, extras: Mapping[str, Any]) -> BoolArray: ...

    def frame_camera(self, camera: str | None) -> Any: ...

    def close(self) -> None: ...


class IsaacLabVec:
    """``VecSim`` over one Isaac Lab environment: see sims/base.py for the contract.

    Not maskable (the physics of all environments advances together: those outside the mask hold still) and not
    restorable (Newton's warm starts and Isaac Lab's buffers can't be put back).
    """

    def __init__(  # noqa: PLR0913  what a YAML file may say
        self,
        task: str = "lift",
        num_envs: int = 64,
        *,
        device: str = "cpu",
        seed: int = 0,
        max_episode_steps: int | None = None,
        dense_reward: bool = False,
        terminate_on_success: bool = True,
        cameras: Sequence[str] = (),
        image_size: int = 64,
        depth: bool = False,
        cpu_graph: bool | None = None,
        cfg_overrides: Mapping[str, Any] | None = None,
    ) -> None:
        """task: a native task, a registered gym id (``Isaac-Cartpole-Direct``) or ``module:Class``. device: ``cpu`` or
        ``cuda:0``. max_episode_steps: default the task's. cfg_overrides: dotted path -> value, set in the configuration
        of a foreign environment before it is built.

        Of the native tasks alone: dense_reward, terminate_on_success; cameras, image_size, depth: entries
        image_<camera>, that many pixels square, and depth_<camera>; cpu_graph: replay a recorded physics step on the
        CPU (default where possible).

        Raises ImportError without the extra, ValueError for an unknown task or option, FileNotFoundError for assets
        that can't be had, RuntimeError while another one is open in this process.
        """
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: at least one environment is needed")
        if max_episode_steps is not None and max_episode_steps < 1:
            raise ValueError(f"max_episode_steps={max_episode_steps}: an episode needs at least one step")
        check_free()
        self._closed = False
        self._task = _build(
            task,
            num_envs,
            {"device": device, "seed": seed, "max_episode_steps": max_episode_steps},
            {
                "dense_reward": dense_reward,
                "terminate_on_success": terminate_on_success,
                "cameras": CameraOptions(tuple(cameras), image_size, depth),
                "cpu_graph": cpu_graph,
            },
            cfg_overrides,
        )
        try:
            self._spec = self._task.spec()
            self._low, self._high = np.array(self._spec.action.low), np.array(self._spec.action.high)
            self._obs: dict[str, FloatArray] = {}
            self.reset(seed)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def is_free() -> bool:
        """Whether no Isaac Lab environment lives in this process."""
        try:
            check_free()
        except RuntimeError:
            return False
        return True

    @property
    def num_envs(self) -> int:
        """E."""
        return self._task.book.num_envs

    @property
    def spec(self) -> SimSpec:
        """Names, units, bounds, rates."""
        return self._spec

    @property
    def diverged_count(self) -> int:
        """Episodes ended by a non-finite or exploding state since construction."""
        return self._task.book.diverged_count

    @property
    def success(self) -> BoolArray:
        """[E] whether the current state fulfils the task; False where the environment can't tell between steps."""
        return self._task.success()

    # ------------------------------------------------------------------ episodes

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        """See ``VecSim.reset``. Foreign environments draw from global generators, which an int seeds; of an array of
        seeds they get one hash.
        """
        rows = np.flatnonzero(checked_mask(mask, self.num_envs))
        self._task.seed(seed, rows)
        if len(rows):
            self._restart(rows)
        return self.observe()

    def _restart(self, rows: NDArray[np.int64]) -> None:
        """Begin the next episode of ``rows``; observations of the other environments stay what they were."""
        env = self._task.env
        with quietly():
            if len(rows) == self.num_envs:
                found, _ = env.reset()
            else:
                found = _partial_reset(env, rows)
        fresh = self._task.entries(found)
        self._task.book.begin(rows)
        if not self._obs or len(rows) == self.num_envs:
            self._obs = fresh
            return
        for name, array in fresh.items():
            self._obs[name][rows] = array[rows]

    def observe(self) -> dict[str, FloatArray]:
        """See ``VecSim.observe``."""
        return {name: array.copy() for name, array in self._obs.items()}

    # ------------------------------------------------------------------ step

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        """See ``VecSim.step``. A diverged environment ends as terminated with reward 0; its last good observation is
        final_obs.
        """
        action = checked_action(action, self.num_envs, self._spec)
        active = checked_mask(mask, self.num_envs)
        if not active.any():
            return self._nothing()
        inside = np.where(active[:, None], np.clip(action, self._low, self._high), self._task.hold())
        torch, task = load("torch"), self._task
        task.active = active
        obs, reward, terminated, truncated, extras = task.env.step(torch.as_tensor(inside, dtype=torch.float32))
        reward, ended, cut = (tensor.cpu().numpy().copy() for tensor in (reward, terminated, truncated))
        restarted = ended | cut
        last, obs = self._obs, task.entries(obs)
        final = {name: array.copy() for name, array in obs.items()}
        if restarted.any():
            for name, array in task.entries(extras["final_obs"]).items():
                final[name][restarted] = array[restarted]
        bad = task.diverged | ~np.isfinite(reward) | _broken(final) | _broken(obs)
        for name, array in final.items():
            array[bad] = last[name][bad]
            obs[name][bad & ~restarted] = last[name][bad & ~restarted]
        self._obs = obs
        diverged = bad & active
        reward = np.where(active & ~bad, reward, 0.0).astype(np.float32)
        ended, cut = active & (bad | ended), active & ~bad & cut & ~ended
        success = task.last_success(extras) & active & ~bad
        task.book.count(reward, active, bad)
        info = task.book.info(success, diverged)
        task.book.begin(np.flatnonzero(restarted))
        if bad.any():
            log.warning("physics diverged in environments %s; their episodes end here", np.flatnonzero(bad).tolist())
            left = np.flatnonzero(bad & ~restarted)
            if len(left):
                self._restart(left)
        return Step(self.observe(), reward, ended, cut, final, info)

    def _nothing(self) -> Step:
        """A step in which every environment waits: no time passes."""
        none = np.zeros(self.num_envs, dtype=bool)
        info = self._task.book.info(none.copy(), none.copy())
        zero = np.zeros(self.num_envs, np.float32)
        return Step(self.observe(), zero, none, none.copy(), self.observe(), info)

    # ------------------------------------------------------------------ state, pictures, end

    def state(self) -> dict[str, NDArray[Any]]:
        """RuntimeError: Isaac Lab can't (``spec.restorable`` is False)."""
        raise RuntimeError(
            f"{self._spec.name} runs in Isaac Lab, which can't save the state of its solver (restorable)"
        )

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """RuntimeError, as ``state``."""
        del state
        raise RuntimeError(f"{self._spec.name} runs in Isaac Lab, which can't restore the state of its solver")

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        """See ``VecSim.render``. Newton's cameras are part of the scene: the picture has the camera's own size, brought
        to width x height by nearest neighbours. RuntimeError without a camera.
        """
        sensor = self._task.frame_camera(camera)
        picture = sensor.data.output["rgb"].torch[env, ..., :3].cpu().numpy()
        rows = np.arange(height) * picture.shape[0] // height
        columns = np.arange(width) * picture.shape[1] // width
        return np.ascontiguousarray(picture[rows][:, columns])

    def close(self) -> None:
        """Close the environment, so that another can be opened; callable twice."""
        if self._closed:
            return
        self._closed = True
        with quietly():
            self._task.env.close()
        self._task.close()


def _build(
    task: str,
    num_envs: int,
    common: Mapping[str, Any],
    own: Mapping[str, Any],
    cfg_overrides: Mapping[str, Any] | None,
) -> IsaacTask:
    """The task by its name, with the options that it takes."""
    from sims.isaaclab_arm import ArmTask, arm_tasks
    from sims.isaaclab_foreign import ForeignTask

    if task in arm_tasks():
        if cfg_overrides:
            raise ValueError(
                f"cfg_overrides are for environments of others: {task} is set by the options of IsaacLabVec"
            )
        return ArmTask(task, num_envs, **common, **own)
    return ForeignTask(task, num_envs, known=arm_tasks(), cfg_overrides=cfg_overrides, **common)


def _partial_reset(env: Any, rows: NDArray[np.int64]) -> Mapping[str, Any]:
    """Reset ``rows`` alone, which Isaac Lab does inside its own step only; returns observations of all."""
    torch = load("torch")
    env._reset_idx(torch.as_tensor(rows, dtype=torch.int32, device=env.device))  # noqa: SLF001
    env.scene.write_data_to_sim()
    env.sim.forward()
    manager = getattr(env, "observation_manager", None)
    return manager.compute() if manager is not None else env._get_observations()  # noqa: SLF001


def _broken(obs: Mapping[str, FloatArray]) -> BoolArray:
    """[E] whether any entry holds a NaN or (depths aside) an infinity."""
    checks = [
        ~np.isfinite(array).all(axis=1)
        for name, array in obs.items()
        if array.dtype != np.uint8 and not name.startswith("depth_")
    ]
    return np.any(checks, axis=0) if checks else np.zeros(len(next(iter(obs.values()))), dtype=bool)
