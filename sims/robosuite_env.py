"""One robosuite environment that serves any number of episodes: each is a vector of numbers, loaded, stepped, saved.

Building a robosuite environment takes seconds and most of what it holds never changes, so a process builds one. All
that decides an episode's future is in its vector: MuJoCo's integration state, the arms' rest postures, the grippers'
commands, and where the fixed bodies of the scene stand.
"""

from __future__ import annotations

import importlib
import importlib.util
import logging
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.render import Renderer
from sims.robosuite_control import ArmControl, controller_config
from sims.robosuite_tasks import CONTROL_HZ, RobosuiteTask, Sensor

log = logging.getLogger(__name__)

Array = NDArray[np.float64]
STATE = mujoco.mjtState.mjSTATE_INTEGRATION
PLACEMENT_TRIES = 20
DEFAULT_CAMERA = "agentview"
BAD = (mujoco.mjtWarning.mjWARN_BADQPOS, mujoco.mjtWarning.mjWARN_BADQVEL, mujoco.mjtWarning.mjWARN_BADQACC)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What a worker process needs to build its environment; picklable."""

    task: RobosuiteTask
    dense_reward: bool = False
    pictures: tuple[str, ...] = ()
    image_size: tuple[int, int] = (84, 84)


@dataclass(frozen=True, slots=True)
class Layout:
    """What the built environment is like."""

    sensors: tuple[Sensor, ...]
    state_size: int
    obs_size: int
    cameras: tuple[str, ...]


def require_robosuite() -> None:
    """ImportError that names the extra, where robosuite isn't installed; imports nothing."""
    if importlib.util.find_spec("robosuite") is None:
        raise ImportError(
            "this simulator needs the package robosuite, in an environment of its own (it pins an older MuJoCo): "
            "pip install 'robopo[robosuite]'"
        )


def load_robosuite() -> Any:
    """Import robosuite quietly, leaving its folder and the process' GL settings as they are."""
    require_robosuite()
    spec = importlib.util.find_spec("robosuite")
    folders = list(spec.submodule_search_locations or ()) if spec else []
    name = "robosuite.macros_private"
    if name not in sys.modules and not any((Path(folder) / "macros_private.py").exists() for folder in folders):
        # robosuite reads its settings from this module, and warns at length where a user has none. Compiled helpers
        # cost half a minute per process and are used here at resets only.
        settings = types.ModuleType(name)
        settings.__dict__.update(
            CONSOLE_LOGGING_LEVEL="ERROR", ENABLE_NUMBA=False, CACHE_NUMBA=False, MUJOCO_GPU_RENDERING=False
        )
        sys.modules[name] = settings
    robosuite: Any = importlib.import_module("robosuite")
    logging.getLogger("robosuite_logs").setLevel(logging.ERROR)
    mujoco.set_mju_user_warning(log.debug)  # instead of a MUJOCO_LOG.TXT where the process happens to run
    return robosuite


class SceneRenderer(Renderer):
    """robosuite's scenes: visual shapes are group 1, collision shapes group 0."""

    def __init__(self, model: mujoco.MjModel, *, width: int, height: int) -> None:
        super().__init__(model, width=width, height=height)
        self._scene = mujoco.MjvScene(model, maxgeom=2000)
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._option.geomgroup[0] = 0


class RobosuiteEnv:
    """One built environment. ``state`` arguments are rows [S] that are read and overwritten in place."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe
        task = recipe.task
        robosuite = load_robosuite()
        two = {"env_configuration": "opposed"} if task.num_arms == 2 else {}
        np.random.seed(0)  # the scene (such as the cube's size) must not depend on the process
        self._env: Any = robosuite.make(
            task.env_name,
            robots=["Panda"] * task.num_arms,
            controller_configs=[controller_config() for _ in range(task.num_arms)],
            has_renderer=False,
            has_offscreen_renderer=False,
            use_camera_obs=False,
            renderer="mujoco",
            control_freq=int(CONTROL_HZ),
            horizon=1 << 60,
            ignore_done=True,
            hard_reset=False,
            reward_shaping=recipe.dense_reward,
            seed=0,
            **two,
        )
        self._env.reset()
        self.model: mujoco.MjModel = self._env.sim.model._model  # noqa: SLF001
        self.data: mujoco.MjData = self._env.sim.data._data  # noqa: SLF001
        self._home = self.model.body_pos.copy(), self.model.body_quat.copy()
        self._arms = [ArmControl(self.model, robot) for robot in self._env.robots]
        self._substeps = round(1.0 / (CONTROL_HZ * self.model.opt.timestep))
        self._inertia = np.zeros((self.model.nv, self.model.nv))
        self._readers = self._sensors()
        self._renderers: dict[tuple[int, int], SceneRenderer] = {}
        self._slices()
        self.layout = Layout(
            sensors=task.object or self._own_sensors(),
            state_size=self._end,
            obs_size=len(self._observe()),
            cameras=tuple(self.model.camera(i).name for i in range(self.model.ncam)),
        )
        # Compiles the controller now, so that no first step is slow enough to be taken for a hanging one.
        scratch = np.zeros(self._end)
        self.reset(scratch, 0)
        self.step(scratch, np.zeros(7 * task.num_arms))

    def _slices(self) -> None:
        count, arms, bodies = mujoco.mj_stateSize(self.model, STATE), len(self._arms), self.model.nbody
        ends = np.cumsum([count, 7 * arms, 2 * arms, 3 * bodies, 4 * bodies]).tolist()
        self._physics, self._posture, self._grip, self._place, self._turn = (
            slice(start, end) for start, end in zip([0, *ends], ends, strict=False)
        )
        self._end = ends[-1]

    # ------------------------------------------------------------------ observations

    def _sensors(self) -> dict[str, Callable[[dict[str, Any]], Any]]:
        """Sensors of the scene's objects, by robosuite's names; those that others read come first."""
        found = {
            name: observable._sensor  # noqa: SLF001
            for name, observable in self._env._observables.items()  # noqa: SLF001
            if observable.modality == "object" and (observable.is_active() or name.startswith("world_pose_in"))
        }
        # Relative poses read the cache, so they come after what they refer to. robosuite 1.5.2 runs some the other way
        # round and shows the relative pose of the step before.
        return dict(sorted(found.items(), key=lambda item: "_to_" in item[0]))

    def _own_sensors(self) -> tuple[Sensor, ...]:
        """The object entry of a task without a table: robosuite's active sensors, in its order."""
        cache = self._cache()
        parts: list[Sensor] = []
        for name, observable in self._env._observables.items():  # noqa: SLF001
            if name in self._readers and observable.is_active():
                size = np.size(cache[name])
                suffixes = () if size == 1 else tuple("xyzw"[:size]) if size <= 4 else tuple(map(str, range(size)))
                parts.append((name, suffixes, "1" if name.endswith("quat") else "m" if size == 3 else ""))
        return tuple(parts)

    def _cache(self) -> dict[str, Any]:
        cache: dict[str, Any] = {}
        for index, arm in enumerate(self._arms):
            cache[f"robot{index}_eef_pos"] = self.data.site_xpos[arm.site].copy()
            cache[f"robot{index}_eef_quat"] = self.data.xquat[arm.hand][[1, 2, 3, 0]]
            cache[f"robot{index}_gripper_qpos"] = self.data.qpos[arm.fingers]
        for name, sensor in self._readers.items():
            cache[name] = sensor(cache)
        return cache

    def _observe(self) -> NDArray[np.float32]:
        """[D]: the robots' keys in order, then the object's parts; of positions that have been brought up to date."""
        cache = self._cache()
        parts = [
            np.ravel(cache[f"robot{index}_{key}"])
            for index in range(len(self._arms))
            for key in ("eef_pos", "eef_quat", "gripper_qpos")
        ]
        for name, _, _ in self.recipe.task.object or self._own_sensors():
            value = np.ravel(np.asarray(cache[name.removeprefix("-")], dtype=np.float64))
            parts.append(-value if name.startswith("-") else value)
        return np.concatenate(parts).astype(np.float32)

    # ------------------------------------------------------------------ episodes

    def reset(self, state: Array, seed: int) -> NDArray[np.float32]:
        """Begin the episode of ``seed`` and return its first observation [D]."""
        self.model.body_pos[:], self.model.body_quat[:] = self._home
        np.random.seed(seed)  # robosuite's few uses of the global generator
        self._env.rng.bit_generator.state = np.random.default_rng(seed).bit_generator.state
        for attempt in range(PLACEMENT_TRIES):
            try:
                self._env.reset()
                break
            except Exception as error:
                if type(error).__name__ != "RandomizationError" or attempt == PLACEMENT_TRIES - 1:
                    raise
        # The solver's memory still tells of the process' last episode.
        self.data.qacc_warmstart[:], self.data.qacc[:], self.data.ctrl[:], self.data.time = 0.0, 0.0, 0.0, 0.0
        mujoco.mj_fwdPosition(self.model, self.data)
        postures = [robot.part_controllers["right"].initial_joint for robot in self._env.robots]
        state[self._posture], state[self._grip] = np.concatenate(postures), 0.0
        self._save(state)
        return self._observe()

    def step(self, state: Array, action: Array) -> tuple[NDArray[np.float32], float, bool]:
        """Advance one control step; observation [D], reward, success. FloatingPointError where physics exploded."""
        self._load(state)
        model, data, arms, inertia = self.model, self.data, self._arms, self._inertia
        before = [data.warning[kind].number for kind in BAD]
        grips = state[self._grip].reshape(-1, 2)
        postures, actions = state[self._posture].reshape(-1, 7), action.reshape(-1, 7)
        for substep in range(self._substeps):
            mujoco.mj_step1(model, data)
            mujoco.mj_fullM(model, inertia, data.qM)
            for index, arm in enumerate(arms):
                if substep == 0:
                    grips[index] = arm.aim(data, actions[index], grips[index])
                arm.apply(data, inertia, postures[index], grips[index])
            mujoco.mj_step2(model, data)
        if [data.warning[kind].number for kind in BAD] != before or not np.isfinite(data.qpos).all():
            raise FloatingPointError("the physics exploded")
        # Positions, and contacts, of the state that was reached: robosuite itself reads them one physics step late.
        mujoco.mj_fwdPosition(model, data)
        self._save(state)
        obs = self._observe()
        success = bool(self._env._check_success())  # noqa: SLF001
        reward = float(self._env.reward(action)) if self.recipe.dense_reward else float(success)
        if not (np.isfinite(obs).all() and np.isfinite(reward)):
            raise FloatingPointError("an observation or the reward is not finite")
        return obs, reward, success

    def _save(self, state: Array) -> None:
        mujoco.mj_getState(self.model, self.data, state[self._physics], STATE)
        state[self._place], state[self._turn] = self.model.body_pos.ravel(), self.model.body_quat.ravel()

    def _load(self, state: Array) -> None:
        if not np.isfinite(state).all():
            raise FloatingPointError("the state is not finite")
        self.model.body_pos[:] = state[self._place].reshape(-1, 3)
        self.model.body_quat[:] = state[self._turn].reshape(-1, 4)
        mujoco.mj_setState(self.model, self.data, state[self._physics], STATE)

    def pictures(self) -> list[NDArray[np.uint8]]:
        """The observed cameras' frames [H, W, 3] of the state that was last reset or stepped."""
        height, width = self.recipe.image_size
        return [self._frame(camera, width, height) for camera in self.recipe.pictures]

    def frame(self, state: Array, camera: str | None, width: int, height: int) -> NDArray[np.uint8]:
        """One frame [height, width, 3] of ``state``; ValueError for an unknown camera."""
        self._load(state)
        mujoco.mj_fwdPosition(self.model, self.data)
        return self._frame(camera or DEFAULT_CAMERA, width, height)

    def _frame(self, camera: str, width: int, height: int) -> NDArray[np.uint8]:
        if (width, height) not in self._renderers:
            limits = self.model.vis.global_
            limits.offwidth, limits.offheight = max(limits.offwidth, width), max(limits.offheight, height)
            self._renderers[width, height] = SceneRenderer(self.model, width=width, height=height)
        return self._renderers[width, height].frame(self.data, camera)

    def close(self) -> None:
        """Free GL contexts; callable twice."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
