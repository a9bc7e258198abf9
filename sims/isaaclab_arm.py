"""The native tabletop tasks inside Isaac Lab: same scene, controller, starts, observations and reward, other physics.

Robot, table and objects are written to USD from the compiled MuJoCo scene; what tasks see is computed from the joint
angles and object poses that Newton returns, by the code that ``MujocoVec`` uses.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import gymnasium
import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.arm_model import FRANKA
from sims.base import BoolArray, Feature, FloatArray, Seed, SimSpec, image_feature
from sims.controllers import MAX_REFERENCE_ERROR_RAD
from sims.episode_book import EpisodeBook
from sims.isaaclab_cameras import CameraOptions, camera_frames, camera_settings
from sims.isaaclab_engine import load, quietly, solver_settings
from sims.isaaclab_usd import write_arm, write_object, write_world
from sims.scene import SceneLayout
from sims.tasks import TASKS, make_task
from sims.tasks.base import SceneView, state_observation

CONTROL_HZ = 20.0
SUBSTEPS = 10
MAX_SPEED = 100.0
"""Joint or object speed (rad/s, m/s) beyond which a state counts as diverged, as in the native simulator."""
SOLVER = {
    "integrator": "implicitfast",
    "cone": "pyramidal",
    "impratio": 1.0,
    "iterations": 20,
    "ls_iterations": 50,
    "njmax": 200,
    "nconmax": 40,
}


def arm_tasks() -> tuple[str, ...]:
    """Names of the native tasks that exist here: one arm, no furniture."""
    return tuple(sorted(t.name for t in TASKS if len(t.mounts) == 1 and not t.joints))


class ArmTask:
    """One native task as an Isaac Lab DirectRLEnv, as ``IsaacLabVec`` drives it (see ``IsaacTask``)."""

    def __init__(
        self,
        task: str,
        num_envs: int,
        *,
        device: str,
        seed: int,
        max_episode_steps: int | None = None,
        dense_reward: bool = False,
        terminate_on_success: bool = True,
        cameras: CameraOptions | None = None,
        cpu_graph: bool | None = None,
    ) -> None:
        self.task = make_task(task)
        self.layout = SceneLayout(self.task, FRANKA, action_mode="ee_delta", control_hz=CONTROL_HZ)
        self.book = EpisodeBook(num_envs)
        self.book.reseed(seed, np.arange(num_envs))
        self.limit = max_episode_steps or self.task.max_episode_steps
        self.dense_reward, self.terminate_on_success = dense_reward, terminate_on_success
        self.cameras = cameras or CameraOptions()
        self.on_cpu = device == "cpu"
        model, E = self.layout.model, num_envs
        self.active = np.ones(E, dtype=bool)
        self.diverged, self.done_success = np.zeros(E, dtype=bool), np.zeros(E, dtype=bool)
        self._qpos = np.tile(model.qpos0, (E, 1))
        self._reference, self._fixtures = np.zeros((E, model.nu)), np.zeros((E, model.nmocap, 7))
        self._command, self._substep = self._reference.copy(), 0
        self._assets = Path(tempfile.mkdtemp(prefix="robopo-isaaclab-"))
        try:
            self.env = self._open(num_envs, device, seed, cpu_graph)
        except BaseException:
            self.close()
            raise
        self._bind()

    # ------------------------------------------------------------------ construction

    def _open(self, num_envs: int, device: str, seed: int, cpu_graph: bool | None) -> Any:
        model = self.layout.model
        names = write_arm(model, f"{self.layout.arms[0].prefix}joint1", self._assets / "arm.usda")
        write_world(model, self._assets / "table.usda")
        for name in self.layout.object:
            write_object(model, name, self._assets / f"{name}.usda")
        envs, sim = load("isaaclab.envs"), load("isaaclab.sim")
        solver = solver_settings(device, graph=cpu_graph, **SOLVER)
        cfg = envs.DirectRLEnvCfg()
        cfg.seed, cfg.decimation, cfg.compute_final_obs = seed, SUBSTEPS, True
        cfg.episode_length_s = 1e6  # this class counts the steps
        feature = self.layout.action_feature
        low, high = np.array(feature.low, np.float32), np.array(feature.high, np.float32)
        cfg.action_space = gymnasium.spaces.Box(low, high, dtype=np.float32)
        cfg.observation_space, cfg.state_space = self._width(), 0
        cfg.sim = sim.SimulationCfg(
            device=device,
            dt=1.0 / (CONTROL_HZ * SUBSTEPS),
            render_interval=SUBSTEPS,
            physics=load("isaaclab_newton.physics").NewtonCfg(solver_cfg=solver),
        )
        # Every world of Newton is a space of its own: all at the origin, positions round the same way for every E.
        cfg.scene = load("isaaclab.scene").InteractiveSceneCfg(num_envs=num_envs, env_spacing=0.0)
        self._fill(cfg.scene, names)
        with quietly():
            return env_class(self)(cfg)

    def _fill(self, scene: Any, joints: Sequence[str]) -> None:
        """Put robot, table, objects and cameras into the scene's configuration."""
        assets, sim = load("isaaclab.assets"), load("isaaclab.sim")
        root = "{ENV_REGEX_NS}"

        def usd(name: str) -> Any:
            return sim.UsdFileCfg(usd_path=str(self._assets / f"{name}.usda"))

        scene.table = assets.AssetBaseCfg(prim_path=f"{root}/Table", spawn=usd("table"))
        arm = self.layout.arms[0]
        home = {f"{arm.prefix}joint{i + 1}": float(angle) for i, angle in enumerate(arm.kind.home_rad)}
        scene.robot = assets.ArticulationCfg(
            prim_path=f"{root}/Robot",
            spawn=usd("arm"),
            init_state=assets.ArticulationCfg.InitialStateCfg(joint_pos=home),
            actuators={"all": self._actuators(joints)},
        )
        for name in self.layout.object:
            setattr(scene, name, assets.RigidObjectCfg(prim_path=f"{root}/{name}", spawn=usd(name)))
        for name in self.cameras.names:
            setattr(scene, f"camera_{name}", camera_settings(self.layout.model, name, self.cameras))

    def _actuators(self, joints: Sequence[str]) -> Any:
        """The model's position actuators; the gripper's tendon becomes an equal drive on every finger."""
        model, arm = self.layout.model, self.layout.arms[0]
        gains: dict[str, tuple[float, float, float]] = {}
        fingers = [f"{arm.prefix}finger_joint{i + 1}" for i in range(arm.kind.num_fingers)]
        for row, name in zip(arm.actuator, joints[: arm.kind.num_joints], strict=False):
            gains[name] = _gains(model, int(row), name, 1)
        for name in fingers:
            gains[name] = _gains(model, int(arm.actuator[-1]), name, len(fingers))
        return load("isaaclab.actuators").ImplicitActuatorCfg(
            joint_names_expr=list(gains),
            stiffness={name: gain[0] for name, gain in gains.items()},
            damping={name: gain[1] for name, gain in gains.items()},
            joint_effort_limit={name: gain[2] for name, gain in gains.items()},
        )

    def _bind(self) -> None:
        arm, robot = self.layout.arms[0], self.env.scene["robot"]
        names = [f"{arm.prefix}joint{i + 1}" for i in range(arm.kind.num_joints)]
        names += [f"{arm.prefix}finger_joint{i + 1}" for i in range(arm.kind.num_fingers)]
        self._robot = robot
        self._ids: list[int] = [int(i) for i in robot.find_joints(names, preserve_order=True)[0]]
        self._address = np.concatenate([arm.joint, arm.finger])

    # ------------------------------------------------------------------ what IsaacLabVec asks

    def spec(self) -> SimSpec:
        """Names, bounds, rates."""
        observation: dict[str, Feature] = {
            "environment_state": self.task.features(),
            "state": self.layout.state_feature,
        }
        options = self.cameras
        for name in options.names:
            observation[f"image_{name}"] = image_feature(options.size, options.size)
            if options.depth:
                observation[f"depth_{name}"] = depth_feature(options)
        return SimSpec(
            name=self.task.name,
            engine="isaaclab",
            observation=observation,
            action=self.layout.action_feature,
            action_mode="ee_delta",
            control_hz=CONTROL_HZ,
            max_episode_steps=self.limit,
            restorable=False,
            maskable=False,
            independent=self.on_cpu,  # on CUDA nobody has looked
            instruction=self.task.instruction,
            cameras=options.names,
        )

    def seed(self, seed: Seed, rows: NDArray[np.int64]) -> None:
        """Environments in ``rows`` draw their next episodes from their own generators."""
        self.book.reseed(seed, rows)

    def hold(self) -> FloatArray:
        """[E, A] the action that keeps every arm and gripper where they are told to be."""
        action = np.zeros((self.book.num_envs, self.layout.action_feature.shape[0]))
        action[:, -1] = self._reference[:, self.layout.arms[0].actuator[-1]]
        return action

    def entries(self, obs: Mapping[str, Any]) -> dict[str, FloatArray]:
        """Isaac Lab's observation dictionary -> copies of the entries."""
        return {name: value.cpu().numpy().copy() for name, value in obs.items() if name != "policy"}

    def success(self) -> BoolArray:
        """[E] of the current state."""
        return np.asarray(self.task.success(self._view()), dtype=bool)

    def last_success(self, extras: Mapping[str, Any]) -> BoolArray:  # noqa: ARG002
        """[E] of the step just made, before any reset."""
        return self.done_success.copy()

    def frame_camera(self, camera: str | None) -> Any:
        """The camera sensor called ``camera``, default the first."""
        return self.env.scene[f"camera_{camera or self.cameras.names[0]}"]

    def close(self) -> None:
        """Delete the written assets."""
        shutil.rmtree(self._assets, ignore_errors=True)

    # ------------------------------------------------------------------ what Isaac Lab asks

    def _width(self) -> int:
        return self.task.features().shape[0] + self.layout.state_feature.shape[0]

    def _view(self) -> SceneView:
        return self.layout.view(self._qpos, self._fixtures)

    def _read(self) -> BoolArray:
        """Update ``_qpos`` from the physics where it is sane; returns where it isn't."""
        data = self._robot.data
        qpos, speed = self._qpos.copy(), data.joint_vel.torch.cpu().numpy()
        qpos[:, self._address] = data.joint_pos.torch.cpu().numpy()[:, self._ids]
        speeds = [speed]
        for name, start in self.layout.object.items():
            body = self.env.scene[name].data
            pose = body.root_link_pose_w.torch.cpu().numpy()
            qpos[:, start : start + 3] = pose[:, :3]
            qpos[:, start + 3 : start + 7] = pose[:, [6, 3, 4, 5]]  # xyzw -> wxyz
            speeds.append(body.root_com_vel_w.torch.cpu().numpy())
        with np.errstate(invalid="ignore"):
            fast = np.abs(np.concatenate(speeds, axis=1)).max(axis=1)
            bad = ~np.isfinite(qpos).all(axis=1) | ~(fast <= MAX_SPEED)
        self._qpos[~bad] = qpos[~bad]
        return bad

    def act(self, action: Any) -> None:
        """Actions [E, A] -> the joint targets of this control step, by the native controller."""
        arm, reference = self.layout.arms[0], self._reference
        targets, joints = arm.actuator[:-1], self._qpos[:, arm.joint]
        rows = action.cpu().numpy().astype(np.float64)
        target, opening = arm.controller.resolve(reference[:, targets], rows)
        target = np.clip(target, joints - MAX_REFERENCE_ERROR_RAD, joints + MAX_REFERENCE_ERROR_RAD)
        self._command = reference.copy()
        self._command[:, targets], self._command[:, arm.actuator[-1]] = target, opening
        self._substep = 0

    def drive(self) -> None:
        """Targets of the next physics step: they travel linearly within the control step."""
        self._substep += 1
        share = self._substep / SUBSTEPS
        self._send(self._reference + share * (self._command - self._reference))
        if self._substep == SUBSTEPS:
            self._reference = self._command

    def _send(self, command: NDArray[np.float64]) -> None:
        arm, torch = self.layout.arms[0], load("torch")
        count = arm.kind.num_fingers
        opening = command[:, arm.actuator[-1:]] / arm.kind.gripper_scale / count
        target = np.concatenate([command[:, arm.actuator[:-1]], np.repeat(opening, count, axis=1)], axis=1)
        value = torch.as_tensor(target, dtype=torch.float32, device=self.env.device)
        self._robot.actuators.target_command.set_position_index(value=value, joint_ids=self._ids)

    def dones(self) -> tuple[Any, Any]:
        """Terminated and truncated [E]; environments that idle go on, unless their physics diverged."""
        self.diverged = self._read()
        success = self.success() & ~self.diverged
        self.done_success = success & self.active
        ended = self.done_success if self.terminate_on_success else np.zeros_like(success)
        terminated = self.diverged | ended
        truncated = self.active & ~terminated & (self.book.steps + 1 >= self.limit)
        torch = load("torch")
        return torch.as_tensor(terminated, device=self.env.device), torch.as_tensor(truncated, device=self.env.device)

    def reward(self) -> Any:
        """[E] the native task's."""
        value = self.task.reward(self._view()) if self.dense_reward else self.done_success.astype(np.float64)
        value = np.where(self.active & ~self.diverged, value, 0.0)
        torch = load("torch")
        return torch.as_tensor(value, dtype=torch.float32, device=self.env.device)

    def observation(self) -> dict[str, Any]:
        """Entries as tensors, and their concatenation for Isaac Lab's own learners (``policy``)."""
        torch, view = load("torch"), self._view()
        arrays = {"environment_state": self.task.observation(view), "state": state_observation(view)}
        obs = {name: torch.as_tensor(np.asarray(array, np.float32)) for name, array in arrays.items()}
        obs["policy"] = torch.cat(list(obs.values()), dim=-1).to(self.env.device)
        for name in self.cameras.names:
            obs.update(camera_frames(self.env.scene[f"camera_{name}"], name, self.cameras))
        return obs

    def restart(self, ids: Any) -> None:
        """Put the environments in ``ids`` at the start of their next episode."""
        rows: NDArray[np.int64] = ids.cpu().numpy().astype(np.int64)
        for row in rows.tolist():
            rng = self.book.generator(row)
            start = self.task.sample(rng, self.layout.workspace)
            self._qpos[row], self._fixtures[row], self._reference[row] = self.layout.place(start, rng)
        self._command[rows] = self._reference[rows]
        torch = load("torch")

        def tensor(value: NDArray[np.float64]) -> Any:
            array = np.ascontiguousarray(value, np.float32)
            return torch.as_tensor(array, device=self.env.device)

        robot, where = self._robot, {"env_ids": ids}
        joints = tensor(self._qpos[rows][:, self._address])
        robot.write_joint_position_to_sim_index(position=joints, joint_ids=self._ids, **where)
        robot.write_joint_velocity_to_sim_index(velocity=torch.zeros_like(joints), joint_ids=self._ids, **where)
        for name, first in self.layout.object.items():
            pose = self._qpos[rows, first : first + 7][:, [0, 1, 2, 4, 5, 6, 3]]  # wxyz -> xyzw
            body = self.env.scene[name]
            body.write_root_link_pose_to_sim_index(root_pose=tensor(pose), **where)
            body.write_root_com_velocity_to_sim_index(root_velocity=tensor(np.zeros((len(rows), 6))), **where)
        self._send(self._reference)
        if self.cameras.names:
            self.env.sim.forward()  # pictures show body poses, which follow from what was written


def env_class(task: ArmTask) -> Any:
    """A DirectRLEnv whose hooks are ``task``'s methods."""
    base: Any = load("isaaclab.envs").DirectRLEnv

    def reset_idx(env: Any, ids: Any) -> None:
        base._reset_idx(env, ids)  # noqa: SLF001
        task.restart(ids)

    hooks = {
        "_pre_physics_step": lambda _env, actions: task.act(actions),
        "_apply_action": lambda _env: task.drive(),
        "_get_observations": lambda _env: task.observation(),
        "_get_rewards": lambda _env: task.reward(),
        "_get_dones": lambda _env: task.dones(),
        "_reset_idx": reset_idx,
    }
    return type("ArmTaskEnv", (base,), hooks)


def _gains(model: mujoco.MjModel, actuator: int, joint: str, shared: int) -> tuple[float, float, float]:
    """Stiffness, damping and force limit of a position actuator on ``joint``, one of ``shared`` that it moves.

    Isaac Lab has one damping per joint: the joint's own, a tenth or less of the actuator's, is added to the drive's.
    """
    stiffness, damping = float(model.actuator_gainprm[actuator, 0]), -float(model.actuator_biasprm[actuator, 2])
    passive = float(model.dof_damping[model.joint(joint).dofadr[0]])
    return shared * stiffness, shared * damping + passive, float(model.actuator_forcerange[actuator, 1])


def depth_feature(options: CameraOptions) -> Feature:
    """Distance along the optical axis in metres, rows of the picture one after the other; 0 where there is nothing."""
    size = options.size**2
    names = tuple(f"row{i}_column{j}" for i in range(options.size) for j in range(options.size))
    return Feature((size,), names, ("m",) * size, (0.0,) * size, (float("inf"),) * size)
