"""A work cell played by MuJoCo: the arm, what its cameras would see, and how a new scene is set."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware.clock import RealClock
from hardware.gate_config import GateConfig
from hardware.types import ArmState, Array, SpecError
from robopo.deploy.checkpoint_spec import DeployedPolicy
from robopo.errors import ConfigError, did_you_mean
from robopo.eval.seeds import SeedPurpose, evaluation_seeds
from sims.arm_model import make_arm
from sims.controllers import MAX_REFERENCE_ERROR_RAD, JointTargetController
from sims.mujoco_vec import MujocoVec
from sims.sim_arm import SimArm, SimArmConfig
from sims.sim_arm_spec import spec_from_model
from sims.tasks.base import SceneView, state_observation


@dataclass(frozen=True, slots=True)
class ChunkResolver:
    """Turns a policy's chunk into joint targets with the simulator's own controller; picklable."""

    controller: JointTargetController

    def __call__(self, q_ref: Array, gripper: float, chunk: Array) -> tuple[Array, Array]:  # noqa: ARG002 - the contract
        """q_ref [n] rad, chunk [H, A] -> joints [H, n] rad, openings [H] m."""
        joints, openings = self.controller.rows(q_ref, chunk)
        return np.asarray(joints, np.float64), np.asarray(openings, np.float64)


class SimCell:
    """The task of a policy on a ``SimArm`` in real time; starts come from the seeds reserved for reports."""

    def __init__(
        self, policy: DeployedPolicy, *, task: str | None = None, tick_rad: float = 0.0, seed: int = 0
    ) -> None:
        """task: default the policy's. tick_rad: step of the encoders."""
        name = task or policy.task
        # The batched simulator draws starts and knows the task; it never steps here.
        kind = make_arm(policy.robot or "franka")
        self._sim = MujocoVec(name, 1, arm=kind.name, action_mode=policy.action_mode, num_threads=1)
        part, *others = self._sim.layout.arms
        if others:
            raise ConfigError(f"{name!r} needs {1 + len(others)} arms; robopo deploy drives one")
        if self._sim.spec.control_hz != policy.control_hz:
            raise ConfigError(
                f"the policy acts at {policy.control_hz} Hz, the scene {name!r} at {self._sim.spec.control_hz} Hz; "
                "choose the task that the policy was trained on"
            )
        model = self._sim.model
        self.arm = SimArm(
            model,
            spec_from_model(model, kind=kind),
            clock=RealClock(),
            config=SimArmConfig(tick_rad=tick_rad, seed=seed),
            finger_joints=[f"finger_joint{i + 1}" for i in range(kind.num_fingers)],
            gripper_scale=kind.gripper_scale,
        )
        self.simulated = True
        """An episode may follow one that ended in HOLD without an operator: nobody can be hurt."""
        self.resolver = ChunkResolver(part.controller)
        self._seed = seed

    def gate_config(self, settings: Mapping[str, Any]) -> GateConfig:
        """The gate for this arm: the Panda's own limits, whose motions the tasks need; ``settings`` override."""
        defaults: dict[str, Any] = {
            "velocity_rad_s": 3.0,
            "acceleration_rad_s2": 15.0,
            "jerk_rad_s3": 1000.0,
            "jump_rad": 0.2,
            "ramp_s": 0.5,
            "tracking_error_rad": 0.3,
            "reference_error_rad": MAX_REFERENCE_ERROR_RAD,  # as the simulator that trained the policy
        }
        known = [field.name for field in dataclasses.fields(GateConfig)]
        for name in settings:
            if name not in known:
                raise ConfigError(f"unknown setting 'gate.{name}'{did_you_mean(name, known)}")
        try:
            return GateConfig(**{**defaults, **settings})
        except SpecError as error:
            raise ConfigError(str(error)) from error

    def observe(self, state: ArmState) -> dict[str, NDArray[Any]]:
        """Newest sample -> observation entries [D], computed by the task's own code.

        The arm's own numbers are those of the sample, with its age and its encoders' steps; the object's are what a
        perfect camera would see now.
        """
        qpos, _ = self.arm.scene_state()
        part = self._sim.layout.arms[0]
        qpos[part.joint] = state.position_rad
        qpos[part.finger] = state.gripper_m / part.kind.gripper_scale / part.kind.num_fingers
        view = self._view(qpos)
        return {"environment_state": self._sim.task.observation(view)[0], "state": state_observation(view)[0]}

    def success(self) -> bool:
        """Whether the scene fulfils the task now."""
        return bool(self._sim.task.success(self._view(self.arm.scene_state()[0]))[0])

    def reset(self, episode: int) -> None:
        """Set the scene of episode ``episode``; the arm must be disconnected."""
        seeds = evaluation_seeds(self._seed + episode + 1, SeedPurpose.REPORT)
        self._sim.reset(np.array([seeds[-1]]))
        self.arm.place_fixtures(self._sim.fixtures[0])
        self.arm.reset_scene(self._sim.qpos[0].copy())

    def close(self) -> None:
        """Release the simulator's threads."""
        self._sim.close()

    def _view(self, qpos: NDArray[np.float64]) -> SceneView:
        return self._sim.layout.view(qpos[None], self._sim.fixtures)
