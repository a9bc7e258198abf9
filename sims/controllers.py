"""Action modes: from one row of a policy's action to joint position targets and a gripper opening.

Pure functions of the last targets, so the same object serves the simulator and the resolver in front of a real arm.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from hardware.kinematics import Array, SerialChain, track_delta
from sims.base import Feature

MAX_STEP_M = 0.04
"""Largest tool translation per control step and axis: 0.8 m/s at 20 Hz."""
MAX_STEP_RAD = 0.20
"""Largest tool rotation per control step and axis."""
MAX_REFERENCE_ERROR_RAD = 0.15
"""Targets stay this close to the measured joints, so pressing on something doesn't wind the reference up."""


class ActionMode(StrEnum):
    """What the first elements of an action mean; the last one is always the gripper opening in metres."""

    JOINT_POSITION = "joint_position"
    """Joint targets (rad), one per joint."""
    JOINT_DELTA = "joint_delta"
    """Change of the joint targets (rad), one per joint."""
    EE_DELTA = "ee_delta"
    """Tool translation (m) and rotation vector (rad) in base axes: six numbers, resolved by damped least squares."""


@dataclass(frozen=True, slots=True)
class JointTargetController:
    """Resolves actions of one mode at one control rate."""

    chain: SerialChain
    mode: ActionMode
    control_hz: float
    gripper_max_m: float = 0.08
    """Full opening."""
    prefix: str = ""
    """Of the action's names, where there are several arms."""

    @property
    def feature(self) -> Feature:
        """Names, units and bounds of the action."""
        if self.mode is ActionMode.EE_DELTA:
            names = ("dx", "dy", "dz", "drx", "dry", "drz")
            units, bound = ("m",) * 3 + ("rad",) * 3, np.array([MAX_STEP_M] * 3 + [MAX_STEP_RAD] * 3)
            low, high = -bound, bound
        else:
            names, units = (
                tuple(f"joint{i + 1}" for i in range(self.chain.num_joints)),
                ("rad",) * self.chain.num_joints,
            )
            low, high = self.chain.low_rad, self.chain.high_rad
            if self.mode is ActionMode.JOINT_DELTA:
                high = self.chain.velocity_rad_s / self.control_hz
                low = -high
        return Feature(
            shape=(len(names) + 1,),
            names=tuple(self.prefix + name for name in (*names, "gripper_opening")),
            units=(*units, "m"),
            low=(*(float(v) for v in low), 0.0),
            high=(*(float(v) for v in high), self.gripper_max_m),
        )

    def resolve(self, reference: Array, action: Array) -> tuple[Array, Array]:
        """Reference [B, n] last joint targets, action [B, A] → joint targets [B, n] (within limits), opening [B]."""
        feature = self.feature
        action = np.clip(action, feature.low, feature.high)
        dt_s = 1.0 / self.control_hz
        if self.mode is ActionMode.EE_DELTA:
            target = track_delta(self.chain, reference, action[:, :-1], dt_s=dt_s)
        else:
            wanted = action[:, :-1] + (reference if self.mode is ActionMode.JOINT_DELTA else 0.0)
            reach = self.chain.velocity_rad_s * dt_s
            target = np.clip(wanted, reference - reach, reference + reach)
        return np.clip(target, self.chain.low_rad, self.chain.high_rad), action[:, -1]

    def rows(self, reference: Array, chunk: Array) -> tuple[Array, Array]:
        """A chunk [H, A] from one reference [n] → joint targets [H, n] and openings [H], row after row."""
        joints, openings = [], []
        current = reference[None]
        for row in chunk:
            current, opening = self.resolve(current, row[None])
            joints.append(current[0])
            openings.append(opening[0])
        return np.stack(joints), np.stack(openings)
