"""The native simulator: E MuJoCo environments stepped by mujoco.rollout's thread pool, all else batched numpy.

One call into C++ per control step runs every substep of every environment. An environment's future depends on its own
state and generator alone, never on E, on the thread that ran it, or on its neighbours.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from importlib.resources import as_file, files
from typing import Any

import mujoco
import numpy as np
from mujoco.rollout import Rollout
from numpy.typing import NDArray

from sims.arm_model import FRANKA_HOME_RAD, GRIPPER_MAX_M, NUM_JOINTS, chain_from_model
from sims.base import BoolArray, FloatArray, Seed, SimSpec, Step
from sims.checks import check_state, checked_action, checked_mask
from sims.controllers import MAX_REFERENCE_ERROR_RAD, ActionMode, JointTargetController
from sims.render import Renderer
from sims.seeding import environment_keys, episode_generator
from sims.tasks import make_task
from sims.tasks.base import SceneView, state_feature, state_observation

log = logging.getLogger(__name__)

CONTROL_HZ = 20.0
HOME_NOISE_RAD = 0.03
MAX_SPEED = 100.0
"""Joint or object speed (rad/s, m/s) beyond which a state counts as diverged; nothing here moves at a tenth of it."""


def load_model(task: str) -> mujoco.MjModel:
    """Compile the scene of ``task`` from the assets that ship with the package."""
    with as_file(files("sims") / "assets") as folder:
        return mujoco.MjModel.from_xml_path(str(folder / f"{task}.xml"))


class MujocoVec:
    """``VecSim`` over MuJoCo: see sims/base.py for the contract."""

    def __init__(
        self,
        task: str = "lift",
        num_envs: int = 64,
        *,
        action_mode: str = "ee_delta",
        num_threads: int | None = None,
        max_episode_steps: int | None = None,
        dense_reward: bool = False,
        terminate_on_success: bool = True,
        seed: int = 0,
    ) -> None:
        """num_threads: default one per usable core. max_episode_steps: default the task's own limit."""
        if num_envs < 1:
            raise ValueError(f"num_envs={num_envs}: at least one environment is needed")
        self.task = make_task(task)
        self.model = load_model(task)
        self.dense_reward, self.terminate_on_success = dense_reward, terminate_on_success
        if action_mode not in tuple(ActionMode):
            raise ValueError(f"unknown action_mode {action_mode!r}: known are {', '.join(ActionMode)}")
        self.controller = JointTargetController(chain_from_model(self.model), ActionMode(action_mode), CONTROL_HZ)
        self._substeps = round(1.0 / (CONTROL_HZ * self.model.opt.timestep))
        threads = num_threads or len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else num_threads or 1
        self._pool = Rollout(nthread=threads)
        self._workers = [mujoco.MjData(self.model) for _ in range(threads)]
        self._scratch = mujoco.MjData(self.model)
        self._renderers: dict[tuple[int, int], Renderer] = {}
        self._layout()
        self._spec = SimSpec(
            name=self.task.name,
            engine="mujoco",
            observation={"environment_state": self.task.features(), "state": state_feature()},
            action=self.controller.feature,
            action_mode=action_mode,
            control_hz=CONTROL_HZ,
            max_episode_steps=max_episode_steps or self.task.max_episode_steps,
            restorable=True,
            instruction=self.task.instruction,
            cameras=tuple(self.model.camera(i).name for i in range(self.model.ncam)),
        )
        self._allocate(num_envs)
        self.reset(seed)

    # ------------------------------------------------------------------ layout

    def _layout(self) -> None:
        model = self.model
        self._joint = np.array([model.joint(f"joint{i + 1}").qposadr[0] for i in range(NUM_JOINTS)])
        self._finger = np.array([model.joint(f"finger_joint{i + 1}").qposadr[0] for i in range(2)])
        self._object = int(model.joint("cube").qposadr[0]) if self.task.has_object else -1
        self._qpos = slice(1, 1 + model.nq)  # FULLPHYSICS is (time, qpos, qvel, act)
        self._qvel = slice(1 + model.nq, 1 + model.nq + model.nv)

    def _allocate(self, num_envs: int) -> None:
        count = mujoco.mj_stateSize(self.model, mujoco.mjtState.mjSTATE_FULLPHYSICS)
        self._physics = np.zeros((num_envs, count))
        self._reference = np.zeros((num_envs, self.model.nu))  # last joint targets and gripper opening
        self._goal = np.zeros((num_envs, self.task.goal_dim))
        self._keys = np.zeros(num_envs, dtype=np.uint64)
        self._episode = np.zeros(num_envs, dtype=np.int64)
        self._steps = np.zeros(num_envs, dtype=np.int64)
        self._return = np.zeros(num_envs)
        self.diverged_count = 0
        """Episodes ended by a non-finite or exploding state since construction."""

    @property
    def num_envs(self) -> int:
        """E."""
        return len(self._physics)

    @property
    def spec(self) -> SimSpec:
        """Names, units, bounds, rates."""
        return self._spec

    @property
    def qpos(self) -> NDArray[np.float64]:
        """[E, nq] generalised positions (a view: don't write)."""
        return self._physics[:, self._qpos]

    @property
    def qvel(self) -> NDArray[np.float64]:
        """[E, nv] generalised velocities (a view: don't write)."""
        return self._physics[:, self._qvel]

    @property
    def reference(self) -> NDArray[np.float64]:
        """[E, n+1] last commanded joint targets (rad) and gripper opening (m) (a view: don't write)."""
        return self._reference

    # ------------------------------------------------------------------ episodes

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        """See ``VecSim.reset``."""
        rows = np.flatnonzero(checked_mask(mask, self.num_envs))
        if seed is not None:
            self._keys[rows] = environment_keys(seed, self.num_envs)[rows]
            self._episode[rows] = 0
        self._begin(rows)
        return self._observe(self.view())

    def _begin(self, rows: NDArray[np.int64]) -> None:
        """Start the next episode of each environment in ``rows``; draws only from that environment's generator."""
        for row in rows:
            rng = episode_generator(int(self._keys[row]), int(self._episode[row]))
            start = self.task.sample(rng)
            joints = np.array(FRANKA_HOME_RAD) + rng.uniform(-HOME_NOISE_RAD, HOME_NOISE_RAD, NUM_JOINTS)
            qpos = self.model.qpos0.copy()
            qpos[self._joint], qpos[self._finger] = joints, 0.5 * GRIPPER_MAX_M
            if start.object_pose is not None:
                qpos[self._object : self._object + 7] = start.object_pose
            self._physics[row] = 0.0
            self._physics[row, self._qpos] = qpos
            self._reference[row] = (*joints, GRIPPER_MAX_M)
            self._goal[row] = start.goal
        self._episode[rows] += 1
        self._steps[rows] = 0
        self._return[rows] = 0.0

    def view(self) -> SceneView:
        """The current state as tasks see it, [E, …] each."""
        return scene_view(self.controller.chain, self.qpos, self._goal, self._joint, self._finger, self._object)

    def _observe(self, view: SceneView) -> dict[str, FloatArray]:
        return {
            "environment_state": self.task.observation(view).astype(np.float32),
            "state": state_observation(view).astype(np.float32),
        }

    def observe(self) -> dict[str, FloatArray]:
        """See ``VecSim.observe``."""
        return self._observe(self.view())

    @property
    def success(self) -> BoolArray:
        """[E] whether the current state fulfils the task."""
        return self.task.success(self.view())

    # ------------------------------------------------------------------ step

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        """See ``VecSim.step``. A diverged environment ends as terminated with reward 0; its last good state is
        final_obs.
        """
        action = checked_action(action, self.num_envs, self._spec)
        active = checked_mask(mask, self.num_envs)
        rows = np.flatnonzero(active)
        diverged = np.zeros(self.num_envs, dtype=bool)
        diverged[rows] = self._advance(rows, action[rows])
        view = self.view()
        final_obs, success = self._observe(view), self.task.success(view) & ~diverged
        reward = self.task.reward(view) if self.dense_reward else success.astype(np.float64)
        reward = np.where(active & ~diverged, reward, 0.0)
        self._steps += active
        self._return += reward
        terminated = active & (diverged | (success if self.terminate_on_success else False))
        truncated = active & ~terminated & (self._steps >= self._spec.max_episode_steps)
        info = {
            "success": success & active,
            "diverged": diverged,
            "episode_return": self._return.copy(),
            "episode_length": self._steps.copy(),
        }
        done = terminated | truncated
        obs = final_obs
        if done.any():
            self._begin(np.flatnonzero(done))
            obs = self._observe(self.view())
        return Step(obs, reward.astype(np.float32), terminated, truncated, final_obs, info)

    def _advance(self, rows: NDArray[np.int64], action: NDArray[np.float64]) -> BoolArray:
        """Run one control step of ``rows``; returns which of them diverged (those keep their old state)."""
        if len(rows) == 0:
            return np.zeros(0, dtype=bool)
        before = self._physics[rows]
        joints = before[:, self._qpos][:, self._joint]
        reference = self._reference[rows]
        target, opening = self.controller.resolve(reference[:, :NUM_JOINTS], action)
        target = np.clip(target, joints - MAX_REFERENCE_ERROR_RAD, joints + MAX_REFERENCE_ERROR_RAD)
        command = np.concatenate([target, opening[:, None]], axis=1)
        # Targets travel linearly within the control step, as an arm's own interpolator moves them.
        ramp = (np.arange(1, self._substeps + 1) / self._substeps)[None, :, None]
        control = reference[:, None] + ramp * (command - reference)[:, None]
        states, _ = self._pool.rollout(self.model, self._workers, before, control)
        after = np.asarray(states)[:, -1]
        with np.errstate(invalid="ignore"):
            bad = ~np.isfinite(after).all(axis=1) | (np.abs(after[:, self._qvel]).max(axis=1) > MAX_SPEED)
        self._physics[rows] = np.where(bad[:, None], before, after)
        self._reference[rows] = command
        if bad.any():
            self.diverged_count += int(bad.sum())
            log.warning("physics diverged in environments %s; their episodes end here", rows[bad].tolist())
        return bad

    # ------------------------------------------------------------------ state, pictures, end

    def state(self) -> dict[str, NDArray[Any]]:
        """See ``VecSim.state``."""
        return {
            "physics": self._physics.copy(),
            "reference": self._reference.copy(),
            "goal": self._goal.copy(),
            "keys": self._keys.copy(),
            "episode": self._episode.copy(),
            "steps": self._steps.copy(),
            "return": self._return.copy(),
            "diverged_count": np.array(self.diverged_count),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See ``VecSim.restore``; a state of another task or number of environments is a ValueError."""
        check_state(state, self.state())
        self._physics, self._reference = np.array(state["physics"]), np.array(state["reference"])
        self._goal, self._keys = np.array(state["goal"]), np.array(state["keys"])
        self._episode, self._steps = np.array(state["episode"]), np.array(state["steps"])
        self._return, self.diverged_count = np.array(state["return"]), int(state["diverged_count"])

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        """See ``VecSim.render``; camera None is ``front``."""
        data = self._scratch
        mujoco.mj_setState(self.model, data, self._physics[env], mujoco.mjtState.mjSTATE_FULLPHYSICS)
        if self.task.goal_body is not None:
            body = int(self.model.body(self.task.goal_body).mocapid[0])
            data.mocap_pos[body, : self.task.goal_dim] = self._goal[env]
        mujoco.mj_forward(self.model, data)
        size = (width, height)
        if size not in self._renderers:
            self._renderers[size] = Renderer(self.model, width=width, height=height)
        return self._renderers[size].frame(data, camera or "front")

    def close(self) -> None:
        """Stop the threads and free the GL contexts; callable twice."""
        for renderer in self._renderers.values():
            renderer.close()
        self._renderers.clear()
        self._pool.close()


def scene_view(
    chain: Any,
    qpos: NDArray[np.float64],
    goal: NDArray[np.float64],
    joint: NDArray[np.int64],
    finger: NDArray[np.int64],
    object_start: int,
) -> SceneView:
    """Read E environments' generalised positions [E, nq] the way tasks see them (object_start -1: no object)."""
    joints = qpos[:, joint]
    tcp, rotation = chain.forward(joints)
    pose = qpos[:, object_start : object_start + 7] if object_start >= 0 else np.zeros((len(qpos), 7))
    axes = np.concatenate([rotation[..., 0], rotation[..., 1]], axis=-1)
    return SceneView(joints, tcp, axes, qpos[:, finger].sum(axis=1), pose, goal)
