"""The operational-space controller that robosuite's datasets were recorded with, for one arm, without its overhead.

With robosuite's own controller objects most of a control step passes outside the physics. This one computes the same
torques (tests compare whole trajectories), with Cholesky solves in place of pseudo-inverses.
"""

from __future__ import annotations

import importlib
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

TRANSLATION_M, ROTATION_RAD = 0.05, 0.5
"""What an action of 1 asks for in one control step."""
GRIPPER_SPEED = 0.2
"""How far the command of the fingers moves per control step, of [-1, 1]."""
FINGER_WAY = np.array([-1.0, 1.0])


def controller_config() -> dict[str, Any]:
    """The composite controller of robosuite 1.5, set to what 1.4 called OSC_POSE (see above)."""
    limits = [TRANSLATION_M] * 3 + [ROTATION_RAD] * 3
    arm = {
        "type": "OSC_POSE",
        "input_max": 1,
        "input_min": -1,
        "output_max": limits,
        "output_min": [-limit for limit in limits],
        "kp": 150,
        "damping_ratio": 1,
        "impedance_mode": "fixed",
        "kp_limits": [0, 300],
        "damping_ratio_limits": [0, 10],
        "position_limits": None,
        "orientation_limits": None,
        "uncouple_pos_ori": True,
        "input_type": "delta",
        "input_ref_frame": "world",  # 1.5's default is the arm's base, which differs where arms are turned
        "interpolation": None,
        "ramp_ratio": 0.2,
        "gripper": {"type": "GRIP"},
    }
    return {"type": "BASIC", "body_parts": {"right": arm}}


class ArmControl:
    """One Panda with its gripper inside a compiled scene."""

    def __init__(self, model: mujoco.MjModel, robot: Any) -> None:
        """robot: robosuite's object of a single arm, set up."""
        self._model = model
        self.site = int(robot.eef_site_id["right"])
        self.hand = int(model.body(robot.robot_model.eef_name["right"]).id)
        self.fingers = np.array(robot._ref_gripper_joint_pos_indexes["right"])  # noqa: SLF001  robosuite tells it nowhere else
        controller = robot.part_controllers["right"]
        self.joints, self.dofs = np.array(controller.qpos_index), np.array(controller.qvel_index)
        actuators = robot._ref_actuators_indexes_dict  # noqa: SLF001
        self._motors, self._grip = np.array(actuators["right"]), np.array(actuators["right_gripper"])
        self._low, self._high = model.actuator_ctrlrange[self._motors].T.copy()
        low, high = model.actuator_ctrlrange[self._grip].T
        self._grip_middle, self._grip_half = 0.5 * (low + high), 0.5 * (high - low)
        self._jacobian = np.zeros((6, model.nv))
        self._linear, self._angular = self._jacobian[:3], self._jacobian[3:]
        self._torque = np.zeros(len(self.dofs))
        self._efforts: Any = importlib.import_module("sims.robosuite_osc").efforts
        self._goal_pos, self._goal_axes = np.zeros(3), np.zeros((3, 3))

    def aim(self, data: mujoco.MjData, action: Array, grip: Array) -> Array:
        """Set the goals of one control step from ``action`` [7] and return the gripper's command [2] after ``grip``."""
        self._goal_pos = data.site_xpos[self.site] + TRANSLATION_M * action[:3]
        turn, vector, current = np.zeros(9), ROTATION_RAD * action[3:6], np.zeros(4)
        angle = float(np.sqrt(vector @ vector))
        mujoco.mju_axisAngle2Quat(current, vector / angle if angle > 0 else np.array([1.0, 0.0, 0.0]), angle)
        mujoco.mju_quat2Mat(turn, current)
        self._goal_axes = turn.reshape(3, 3) @ data.site_xmat[self.site].reshape(3, 3)
        return np.clip(grip + FINGER_WAY * GRIPPER_SPEED * np.sign(action[6]), -1.0, 1.0)

    def apply(self, data: mujoco.MjData, inertia: Array, posture: Array, grip: Array) -> None:
        """Write one physics step's controls. inertia [nv, nv]; posture [7] that the redundant joint leans to.

        FloatingPointError where the arm's matrices are no longer positive definite, as after an explosion.
        """
        mujoco.mj_jacSite(self._model, data, self._linear, self._angular, self.site)
        good = self._efforts(
            *(self._jacobian, inertia, self.dofs, data.qvel, posture - data.qpos[self.joints], data.qfrc_bias),
            *(self._goal_pos - data.site_xpos[self.site], data.site_xmat[self.site].reshape(3, 3), self._goal_axes),
            self._torque,
        )
        if not good:
            raise FloatingPointError("the arm's inertia is not positive definite")
        # np.minimum beats np.clip by microseconds, and this runs 500 times per simulated second.
        data.ctrl[self._motors] = np.minimum(np.maximum(self._torque, self._low), self._high)
        data.ctrl[self._grip] = self._grip_middle + self._grip_half * grip
