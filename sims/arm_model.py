"""What the native tasks know about the arm inside a compiled MuJoCo model."""

from __future__ import annotations

import mujoco
import numpy as np

from hardware.kinematics import SerialChain, rotation_from_quaternion

FRANKA_VELOCITY_RAD_S = (2.175, 2.175, 2.175, 2.175, 2.61, 2.61, 2.61)
"""Franka Emika Panda's joint speed limits (manufacturer's interface specification)."""
FRANKA_ACCELERATION_RAD_S2 = (15.0, 7.5, 10.0, 12.5, 15.0, 20.0, 20.0)
FRANKA_HOME_RAD = (0.0, 0.22, 0.0, -2.2, 0.0, 2.42, 0.785398163397)
"""Tool pointing down above the middle of the workspace, away from limits and singularities."""
GRIPPER_MAX_M = 0.08
"""Full opening of the parallel gripper."""
NUM_JOINTS = 7


def chain_from_model(model: mujoco.MjModel) -> SerialChain:
    """Read the arm's joint frames, tool site and limits out of the model, so the two can't disagree.

    Relies on the assets' convention: joints ``joint1``…, each hinge about its body's z axis at the body origin, and a
    site ``tcp`` on a body welded to the last link.
    """
    joints = [model.joint(f"joint{i + 1}") for i in range(NUM_JOINTS)]
    bodies = [int(joint.bodyid[0]) for joint in joints]
    site = model.site("tcp")
    tool_offset, tool_rotation = np.array(site.pos), rotation_from_quaternion(np.array(site.quat))
    body = int(site.bodyid[0])
    while body != bodies[-1]:
        rotation = rotation_from_quaternion(model.body_quat[body])
        tool_offset, tool_rotation = rotation @ tool_offset + model.body_pos[body], rotation @ tool_rotation
        body = int(model.body_parentid[body])
    limits = np.array([joint.range for joint in joints])
    return SerialChain(
        offset=model.body_pos[bodies].copy(),
        rotation=rotation_from_quaternion(model.body_quat[bodies]),
        tool_offset=tool_offset,
        tool_rotation=tool_rotation,
        low_rad=limits[:, 0].copy(),
        high_rad=limits[:, 1].copy(),
        velocity_rad_s=np.array(FRANKA_VELOCITY_RAD_S),
    )
