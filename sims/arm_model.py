"""The arms of the native tasks: what their MJCF doesn't say, and how to read the rest out of a compiled model."""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np

from hardware.kinematics import Array, SerialChain, rotation_from_quaternion


@dataclass(frozen=True, slots=True)
class ArmKind:
    """One kind of arm, ``sims/assets/<name>.xml``.

    Its joints are ``joint1`` …, its fingers ``finger_joint1`` …, its actuators ``actuator1`` … and ``gripper``, its
    tool site ``tcp`` (z axis along the approach). Arrays have one number per arm joint.
    """

    name: str
    home_rad: tuple[float, ...]
    """Tool pointing down above the middle of the workspace, away from limits and singularities."""
    velocity_rad_s: tuple[float, ...]
    acceleration_rad_s2: tuple[float, ...]
    jerk_rad_s3: tuple[float, ...]
    gripper_max_m: float
    """Full opening of the gripper."""
    num_fingers: int = 2
    gripper_scale: float = 1.0
    """Opening in metres per unit of the fingers' summed positions (and of the gripper actuator's command)."""
    mount_x_m: float = 0.0
    mount_z_m: float = 0.0
    """Where on the table the base stands, so that the workspace lies where the tasks are; above it, on a riser."""
    workspace_scale: float = 1.0
    workspace_shift_m: float = 0.0
    """Tasks' positions (written for a Panda at the origin) are scaled, then shifted along x."""
    tasks: tuple[str, ...] | None = None
    """Those it is big enough for; None: all."""

    @property
    def num_joints(self) -> int:
        """N, without the gripper."""
        return len(self.home_rad)


FRANKA = ArmKind(
    name="franka",
    home_rad=(0.0, 0.22, 0.0, -2.2, 0.0, 2.42, 0.785398163397),
    # Franka Emika Panda's limits (manufacturer's interface specification).
    velocity_rad_s=(2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61),
    acceleration_rad_s2=(15.0, 7.5, 10.0, 12.5, 15.0, 20.0, 20.0),
    jerk_rad_s3=(7500.0, 3750.0, 5000.0, 6250.0, 7500.0, 10000.0, 10000.0),
    gripper_max_m=0.08,
)
UR5E = ArmKind(
    name="ur5e",
    home_rad=(-0.259240137092, -1.523390548232, 1.742953932093, -1.790359710656, -1.570796326795, -0.259240137092),
    velocity_rad_s=(3.14159265,) * 6,  # Universal Robots' data sheet; accelerations and jerks are our choice
    acceleration_rad_s2=(8.0, 8.0, 10.0, 15.0, 15.0, 15.0),
    jerk_rad_s3=(80.0, 80.0, 100.0, 150.0, 150.0, 150.0),
    gripper_max_m=0.085,
)
SO101 = ArmKind(
    name="so101",
    home_rad=(-0.044508727479, -0.234432817562, 0.550548275395, 1.254680868961, -1.566625554274),
    velocity_rad_s=(3.14,) * 5,  # two thirds of the servo's speed without load; the rest is our choice
    acceleration_rad_s2=(15.0,) * 5,
    jerk_rad_s3=(150.0,) * 5,
    gripper_max_m=0.08,
    num_fingers=1,
    gripper_scale=0.0765,
    # Pointing straight down the tool reaches 6 cm above its base and 14 cm below; tasks need 0 to 15 cm.
    mount_x_m=0.30,
    mount_z_m=0.10,
    workspace_scale=0.5,
    workspace_shift_m=0.24,
    tasks=("reach", "push", "lift"),
)
ARMS: tuple[ArmKind, ...] = (FRANKA, UR5E, SO101)


def make_arm(name: str) -> ArmKind:
    """The arm called ``name``; ValueError lists the known ones."""
    for kind in ARMS:
        if kind.name == name:
            return kind
    raise ValueError(f"unknown arm {name!r}: known are {', '.join(kind.name for kind in ARMS)}")


def chain_from_model(model: mujoco.MjModel, kind: ArmKind = FRANKA, prefix: str = "") -> SerialChain:
    """Read the arm's joint frames, tool site and limits out of the model, so the two can't disagree.

    Poses are in the world's frame, wherever the arm is mounted. Relies on the assets' convention: joints ``joint1``…,
    each a hinge about its body's z axis at the body origin, and a site ``tcp`` on a body welded to the last link.
    """
    joints = [model.joint(f"{prefix}joint{i + 1}") for i in range(kind.num_joints)]
    bodies = [int(joint.bodyid[0]) for joint in joints]
    offset, rotation = model.body_pos[bodies].copy(), rotation_from_quaternion(model.body_quat[bodies])
    offset[0], rotation[0] = _in_body(model, int(model.body_parentid[bodies[0]]), 0, offset[0], rotation[0])
    site = model.site(f"{prefix}tcp")
    tool_offset, tool_rotation = _in_body(
        model, int(site.bodyid[0]), bodies[-1], np.array(site.pos), rotation_from_quaternion(np.array(site.quat))
    )
    limits = np.array([joint.range for joint in joints])
    return SerialChain(
        offset=offset,
        rotation=rotation,
        tool_offset=tool_offset,
        tool_rotation=tool_rotation,
        low_rad=limits[:, 0].copy(),
        high_rad=limits[:, 1].copy(),
        velocity_rad_s=np.array(kind.velocity_rad_s),
    )


def _in_body(model: mujoco.MjModel, body: int, ancestor: int, position: Array, rotation: Array) -> tuple[Array, Array]:
    """A pose given in ``body`` as seen from ``ancestor``, through welded bodies."""
    while body != ancestor:
        turn = rotation_from_quaternion(model.body_quat[body])
        position, rotation = turn @ position + model.body_pos[body], turn @ rotation
        body = int(model.body_parentid[body])
    return position, rotation
