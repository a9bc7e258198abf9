"""Compose scenes from a table, arms and a task's bodies, and find these parts again in the compiled model."""

from __future__ import annotations

from importlib.resources import as_file, files

import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.arm_model import FRANKA, ArmKind, chain_from_model
from sims.base import Feature
from sims.controllers import ActionMode, JointTargetController
from sims.tasks import make_task
from sims.tasks.base import ArmView, Mount, SceneView, Start, Task, Workspace, joined, state_feature

HOME_NOISE_RAD = 0.03


def compose(task: Task, kind: ArmKind = FRANKA) -> mujoco.MjModel:
    """Compile the scene of ``task`` with arms of one kind at its mounts, from the assets that ship with the package."""
    with as_file(files("sims") / "assets") as folder:

        def part(name: str) -> mujoco.MjSpec:
            return mujoco.MjSpec.from_file(str(folder / f"{name}.xml"))

        scene = part("table")
        for mount in task.mounts:
            turn = [np.cos(0.5 * mount.yaw_rad), 0.0, 0.0, np.sin(0.5 * mount.yaw_rad)]
            x, y, z = mount.position
            place = [x + kind.mount_x_m, y, z + kind.mount_z_m]
            if kind.mount_z_m > 0:
                half = 0.5 * kind.mount_z_m
                scene.worldbody.add_geom(
                    name=f"{mount.prefix}riser",
                    type=mujoco.mjtGeom.mjGEOM_BOX,
                    size=[0.05, 0.05, half],
                    pos=[place[0], y, z + half],
                    rgba=[0.35, 0.37, 0.40, 1.0],
                )
            frame = scene.worldbody.add_frame(pos=place, quat=turn)
            scene.attach(part(kind.name), prefix=mount.prefix, frame=frame)
        scene.attach(part(task.name), prefix="", frame=scene.worldbody.add_frame())
        return scene.compile()


def load_model(task: str, arm: ArmKind = FRANKA) -> mujoco.MjModel:
    """The compiled scene of the task called ``task``."""
    return compose(make_task(task), arm)


class ArmPart:
    """One arm in a compiled scene: where its numbers lie, and the controller that moves it."""

    def __init__(
        self, model: mujoco.MjModel, kind: ArmKind, mount: Mount, *, mode: ActionMode, control_hz: float
    ) -> None:
        p = mount.prefix
        self.kind, self.prefix = kind, p
        self.joint = np.array([model.joint(f"{p}joint{i + 1}").qposadr[0] for i in range(kind.num_joints)])
        self.finger = np.array([model.joint(f"{p}finger_joint{i + 1}").qposadr[0] for i in range(kind.num_fingers)])
        names = [f"{p}actuator{i + 1}" for i in range(kind.num_joints)] + [f"{p}gripper"]
        self.actuator = np.array([model.actuator(name).id for name in names])
        """[n + 1] the gripper's last."""
        chain = chain_from_model(model, kind, p)
        self.controller = JointTargetController(chain, mode, control_hz, kind.gripper_max_m, p)

    def view(self, qpos: NDArray[np.float64]) -> ArmView:
        """Qpos [E, nq] -> what tasks see of the arm."""
        joints = qpos[:, self.joint]
        tcp, rotation = self.controller.chain.forward(joints)
        axes = np.concatenate([rotation[..., 0], rotation[..., 1]], axis=-1)
        opening = qpos[:, self.finger].sum(axis=1)
        return ArmView(joints, tcp, axes, self.kind.gripper_scale * opening)


class SceneLayout:
    """A compiled scene, its parts by name, and the way between generalised positions and what tasks see."""

    def __init__(self, task: Task, kind: ArmKind, *, action_mode: str, control_hz: float) -> None:
        """Raises ValueError for an unknown action mode, or an arm too small for the task."""
        if action_mode not in tuple(ActionMode):
            raise ValueError(f"unknown action_mode {action_mode!r}: known are {', '.join(ActionMode)}")
        if kind.tasks is not None and task.name not in kind.tasks:
            raise ValueError(f"arm {kind.name!r} is too small for {task.name!r}; it can do {', '.join(kind.tasks)}")
        self.task, self.kind = task, kind
        self.workspace = Workspace(kind.workspace_scale, kind.workspace_shift_m)
        self.model = model = compose(task, kind)
        mode = ActionMode(action_mode)
        self.arms = tuple(ArmPart(model, kind, mount, mode=mode, control_hz=control_hz) for mount in task.mounts)
        self.object = {name: int(model.joint(name).qposadr[0]) for name in task.objects}
        self.fixture = {name: int(model.body(name).mocapid[0]) for name in task.fixtures}
        self.hinge = {name: int(model.joint(name).qposadr[0]) for name in task.joints}
        self.ctrl_scale = np.ones(model.nu)
        """From openings in metres to what the gripper actuators take."""
        for arm in self.arms:
            self.ctrl_scale[arm.actuator[-1]] = 1.0 / kind.gripper_scale
        solid = (model.geom_contype | model.geom_conaffinity) != 0
        roots = model.body_rootid[model.geom_bodyid]
        self.moves_fixtures = bool((solid & (model.body_mocapid[roots] >= 0)).any())
        """Whether fixtures can be touched, so that the physics must know where they stand."""

    @property
    def action_feature(self) -> Feature:
        """The arms' actions, end to end."""
        return joined(tuple(arm.controller.feature for arm in self.arms))

    @property
    def state_feature(self) -> Feature:
        """The arms' proprioception, end to end."""
        return joined(tuple(state_feature(arm.kind.num_joints, arm.prefix) for arm in self.arms))

    def view(self, qpos: NDArray[np.float64], fixtures: NDArray[np.float64]) -> SceneView:
        """Qpos [E, nq], fixtures [E, nmocap, 7] -> the scene as tasks see it."""
        return SceneView(
            arms=tuple(arm.view(qpos) for arm in self.arms),
            objects={name: qpos[:, start : start + 7] for name, start in self.object.items()},
            fixtures={name: fixtures[:, index] for name, index in self.fixture.items()},
            joints={name: qpos[:, index] for name, index in self.hinge.items()},
        )

    def place(
        self, start: Start, rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
        """An episode's first qpos [nq], fixtures [nmocap, 7] and reference [nu]; ``rng`` disturbs the arms' home."""
        model = self.model
        qpos, reference, fixtures = model.qpos0.copy(), np.zeros(model.nu), np.zeros((model.nmocap, 7))
        for arm in self.arms:
            kind = arm.kind
            joints = np.array(kind.home_rad) + rng.uniform(-HOME_NOISE_RAD, HOME_NOISE_RAD, kind.num_joints)
            qpos[arm.joint] = joints
            qpos[arm.finger] = kind.gripper_max_m / kind.gripper_scale / kind.num_fingers
            reference[arm.actuator] = (*joints, kind.gripper_max_m)
        for name, index in self.object.items():
            qpos[index : index + 7] = start.objects[name]
        for name, index in self.fixture.items():
            fixtures[index] = start.fixtures[name]
        for name, value in start.joints.items():
            qpos[self.hinge[name]] = value
        return qpos, fixtures, reference
