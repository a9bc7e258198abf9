"""Arm specifications and process-crossing recipes for the arms in the simulated scenes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import mujoco
import numpy as np

from hardware.types import ArmSpec, Clock, GripperSpec, JointSpec, OnLinkLoss
from sims.arm_model import FRANKA, ArmKind
from sims.sim_arm import MEASURES, SimArm, SimArmConfig


def spec_from_model(
    model: mujoco.MjModel,
    *,
    kind: ArmKind = FRANKA,
    name: str | None = None,
    joints: Sequence[str] | None = None,
    gripper: GripperSpec | None = None,
    command_latency_s: float = 0.0,
    state_latency_s: float = 0.0,
    vendor_watchdog_s: float | None = 0.1,
) -> ArmSpec:
    """Joint ranges come from the model, the rest from the kind of arm. name: default ``sim_<kind>``; joints: default
    ``joint1`` …; gripper None: the scene's own.
    """
    joints = joints or [f"joint{i + 1}" for i in range(kind.num_joints)]
    ranges = [model.joint(joint).range for joint in joints]
    limits = zip(joints, ranges, kind.velocity_rad_s, kind.acceleration_rad_s2, kind.jerk_rad_s3, strict=True)
    listed = tuple(JointSpec(joint, float(low), float(high), v, a, j) for joint, (low, high), v, a, j in limits)
    return ArmSpec(
        name=name or f"sim_{kind.name}",
        joints=listed,
        gripper=gripper or GripperSpec(0.0, kind.gripper_max_m, force_max_n=30.0, velocity_max_m_s=0.5),
        state_latency_s=state_latency_s,
        command_latency_s=command_latency_s,
        measures=MEASURES,
        has_brakes=True,
        on_link_loss=OnLinkLoss.STOPS if vendor_watchdog_s else OnLinkLoss.HOLDS_GOAL,
        vendor_watchdog_s=vendor_watchdog_s,
        tcp_body="hand",
    )


@dataclass(frozen=True, slots=True)
class SimArmFactory:
    """Builds a ``SimArm`` inside whatever process runs it: the model travels as MuJoCo's own binary."""

    model: bytes
    """``mjb`` image of the compiled scene: see ``model_image``."""
    spec: ArmSpec
    scene_size: tuple[int, int]
    """(nq, nv) of the scene."""
    config: SimArmConfig = field(default_factory=SimArmConfig)

    @classmethod
    def of(cls, model: mujoco.MjModel, spec: ArmSpec, config: SimArmConfig | None = None) -> SimArmFactory:
        """The recipe for an arm in ``model``."""
        return cls(model_image(model), spec, (model.nq, model.nv), config or SimArmConfig())

    def __call__(self, clock: Clock) -> SimArm:
        """Compile and build."""
        model = mujoco.MjModel.from_binary_path("scene.mjb", {"scene.mjb": self.model})
        return SimArm(model, self.spec, clock=clock, config=self.config)


def model_image(model: mujoco.MjModel) -> bytes:
    """The compiled scene as bytes that ``SimArmFactory`` takes."""
    buffer = bytearray(mujoco.mj_sizeModel(model))
    array = np.frombuffer(buffer, dtype=np.uint8)
    mujoco.mj_saveModel(model, None, array)
    return bytes(buffer)
