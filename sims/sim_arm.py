"""An arm played by MuJoCo behind the hardware contract, as unpleasant as a real one.

The physics advances only when the arm is spoken to, up to the clock's present ("lazy"): a manual clock runs ten
seconds in an instant, a real clock needs no thread. Commands arrive late, samples are old, encoders have ticks, replies
get lost.
"""

from __future__ import annotations

import copy
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import mujoco
import numpy as np

from hardware.types import (
    ArmCommand,
    ArmFault,
    ArmSpec,
    ArmState,
    Array,
    BoolArray,
    Clock,
    CommunicationError,
    FaultReport,
    HardwareError,
    RefusedError,
    SpecError,
    StaleStateError,
    StopKind,
    frozen,
)

MEASURES = frozenset({"velocity", "effort", "goal_echo", "enabled"})
_MAX_CATCH_UP_S = 5.0


@dataclass(frozen=True, slots=True)
class SimArmConfig:
    """Imperfections. Latencies live in the ``ArmSpec``, where the gate knows them too."""

    tick_rad: float = 0.0
    """Step of the encoders and of the goals; 4096 ticks a turn are 0.00153 rad."""
    drop_rate: float = 0.0
    """Share of reads without a reply, in [0, 1)."""
    seed: int = 0

    def __post_init__(self) -> None:
        if not (self.tick_rad >= 0 and 0 <= self.drop_rate < 1):
            raise SpecError(f"tick_rad={self.tick_rad}, drop_rate={self.drop_rate}: expected >= 0 and [0, 1)")


@dataclass(slots=True)
class SimFaults:
    """What is broken right now; tests set these while the arm moves."""

    link_cut: bool = False
    """Nothing gets through, either way; the arm holds its goal until its own watchdog stops it."""
    lose_writes: bool = False
    """Goals vanish without an error."""
    drop_replies: int = 0
    """This many of the next reads get no reply."""
    frozen_stream: bool = False
    """Reads repeat one old sample, old time included."""
    stuck: dict[int, float] = field(default_factory=dict[int, float])
    """Encoders that show one value for ever, by joint."""
    glitch: dict[int, float] = field(default_factory=dict[int, float])
    """Added to the next sample, by joint, then cleared."""
    torque_lost: set[int] = field(default_factory=set[int])
    """Joints whose drive has dropped out."""
    reported: tuple[FaultReport, ...] = ()
    """Faults the controller shows."""


class _Sample(NamedTuple):
    t_s: float
    position: Array
    velocity: Array
    effort: Array
    goal: Array
    enabled: BoolArray
    gripper_m: float


class SimArm:
    """``hardware.arm.SceneArm`` over one MuJoCo scene. The world stands still while the arm is disconnected."""

    def __init__(
        self,
        model: mujoco.MjModel,
        spec: ArmSpec,
        *,
        clock: Clock,
        config: SimArmConfig | None = None,
        actuators: Sequence[str] | None = None,
        gripper_actuator: str = "gripper",
        finger_joints: Sequence[str] = ("finger_joint1", "finger_joint2"),
        gripper_scale: float = 1.0,
    ) -> None:
        """spec.joints name the model's joints; their position actuators default to ``actuator1`` … in that order.

        Fingers: the sum of their positions times gripper_scale is the opening in metres.
        """
        self.spec, self.config, self._clock = spec, config or SimArmConfig(), clock
        self.faults = SimFaults()
        self._model = copy.copy(model)  # drives are switched by their gains: never in the caller's model
        self._data = mujoco.MjData(self._model)
        names = actuators or [f"actuator{i + 1}" for i in range(spec.num_joints)]
        self._qpos = np.array([self._model.joint(joint.name).qposadr[0] for joint in spec.joints])
        self._dof = np.array([self._model.joint(joint.name).dofadr[0] for joint in spec.joints])
        self._act = np.array([self._model.actuator(name).id for name in names])
        if len(self._act) != spec.num_joints:
            raise SpecError(f"{len(self._act)} actuators for {spec.num_joints} joints of arm {spec.name!r}")
        self._gain, self._bias = self._model.actuator_gainprm.copy(), self._model.actuator_biasprm.copy()
        self._gripper = self._model.actuator(gripper_actuator).id if spec.gripper else -1
        self._gripper_scale = gripper_scale
        self._fingers = np.array([self._model.joint(j).qposadr[0] for j in finger_joints]) if spec.gripper else None
        self._rng = np.random.default_rng(self.config.seed)
        self._low, self._high = spec.column("position_min_rad"), spec.column("position_max_rad")
        self._dt_s = float(self._model.opt.timestep)
        self._latency_steps = round(spec.state_latency_s / self._dt_s)
        self._history: deque[_Sample] = deque(maxlen=self._latency_steps + 1)
        self._pending: deque[tuple[float, float, Array, float]] = deque()
        self._connected = self._enabled = self._tripped = self._streaming = False
        self._steps, self._t0_s, self._seq, self._last_command_s = 0, clock.now_s(), 0, clock.now_s()
        self._last_sample: _Sample | None = None
        mujoco.mj_forward(self._model, self._data)
        self._goal = self._measured()
        self._opening_goal_m = self._opening()
        self._apply()

    # ------------------------------------------------------------------ contract

    def connect(self) -> ArmState:
        """See ``Arm.connect``."""
        self._check_link()
        if not self._connected:
            self._connected = True
            self._rebase()
        return self.read()

    def enable(self) -> None:
        """See ``Arm.enable``."""
        self._check_link()
        self._advance()
        if self.faults.reported or self.faults.torque_lost:
            raise RefusedError(
                f"enable: {self.faults.reported or sorted(self.faults.torque_lost)} must be cleared first"
            )
        self._pending.clear()
        self._goal = self._measured()
        self._opening_goal_m = self._opening()
        self._enabled, self._tripped, self._streaming = True, False, False
        self._apply()

    def read(self) -> ArmState:
        """See ``Arm.read``."""
        self._check_link()
        now_s = self._advance()
        if self.faults.drop_replies > 0 or self._rng.random() < self.config.drop_rate:
            self.faults.drop_replies = max(0, self.faults.drop_replies - 1)
            raise StaleStateError("no reply from the arm")
        if not self.faults.frozen_stream or self._last_sample is None:
            self._last_sample = self._history[0] if self._latency_steps else self._sample()
        sample = self._last_sample
        position = self._ticks(sample.position)
        for joint, value in self.faults.stuck.items():
            position[joint] = value
        for joint, value in self.faults.glitch.items():
            position[joint] += value
        self.faults.glitch.clear()
        self._seq += 1
        tripped = (FaultReport(ArmFault.VENDOR_STOP, -1, 0),) if self._tripped else ()
        return ArmState(
            seq=self._seq,
            t_sample_s=sample.t_s,
            t_received_s=now_s,
            position_rad=frozen(position),
            velocity_rad_s=frozen(sample.velocity),
            gripper_m=sample.gripper_m,
            effort_n_m=frozen(sample.effort),
            enabled=sample.enabled,
            goal_echo_rad=frozen(sample.goal),
            vendor_mode=self.vendor_mode,
            faults=self.faults.reported + tripped,
        )

    def send(self, command: ArmCommand) -> ArmCommand:
        """See ``Arm.send``; after its own watchdog has stopped it, the arm ignores goals until it was disabled."""
        self._check_link()
        now_s = self._advance()
        if not self._enabled:
            raise RefusedError("send: the arm is not enabled")
        values, gripper_m = np.clip(self._ticks(command.values), self._low, self._high), command.gripper_m
        if self._tripped:
            values, gripper_m = self._goal, self._opening_goal_m
        if not self.faults.lose_writes and not self._tripped:
            due_s = now_s + self.spec.command_latency_s
            self._pending.append((due_s, command.t_valid_until_s, values, command.gripper_m))
            self._last_command_s, self._streaming = now_s, True
        if not self.spec.command_latency_s:
            self._deliver(now_s)
        return ArmCommand(
            seq=command.seq,
            t_created_s=command.t_created_s,
            t_valid_until_s=command.t_valid_until_s,
            mode=command.mode,
            values=frozen(values),
            gripper_m=gripper_m,
            source=command.source,
        )

    def stop(self, kind: StopKind) -> None:
        """See ``Arm.stop``: the goal becomes the pose; POWER_OFF also drops the torque (brakes close)."""
        self._check_link()
        self._advance()
        self._rest()
        self._streaming = False
        if kind is StopKind.POWER_OFF:
            self._enabled = self._tripped = False
        self._apply()

    def disable(self) -> None:
        """See ``Arm.disable``."""
        self._check_link()
        self.stop(StopKind.POWER_OFF)
        if self._torque().any():
            raise HardwareError(f"joints {np.flatnonzero(self._torque()).tolist()} are still energised")

    def disconnect(self) -> None:
        """See ``Arm.disconnect``."""
        if self._connected and not self.faults.link_cut:
            self.stop(StopKind.POWER_OFF)
        self._connected = False

    # ------------------------------------------------------------------ the world

    @property
    def vendor_mode(self) -> str:
        """``watchdog`` after the arm stopped itself, else ``enabled`` or ``disabled``."""
        return "watchdog" if self._tripped else "enabled" if self._enabled else "disabled"

    def scene_state(self) -> tuple[Array, Array]:
        """See ``SceneArm.scene_state``."""
        self._advance()
        return self._data.qpos.copy(), self._data.qvel.copy()

    def reset_scene(self, qpos: Array, qvel: Array | None = None) -> None:
        """See ``SceneArm.reset_scene``."""
        if self._enabled:
            raise RefusedError("reset_scene: the arm is enabled; disable it first")
        if np.shape(qpos) != (self._model.nq,):
            raise SpecError(f"qpos has shape {np.shape(qpos)}, expected ({self._model.nq},)")
        placed = self._data.mocap_pos.copy(), self._data.mocap_quat.copy()
        mujoco.mj_resetData(self._model, self._data)
        self._data.mocap_pos[:], self._data.mocap_quat[:] = placed
        self._data.qpos[:] = qpos
        if qvel is not None:
            self._data.qvel[:] = qvel
        mujoco.mj_forward(self._model, self._data)
        self._pending.clear()
        self._rest()
        self._opening_goal_m = self._opening()
        self._apply()
        self._rebase()

    def place_fixtures(self, poses: Array) -> None:
        """Set furniture and marks down, poses [nmocap, 7] (position, wxyz quaternion); before ``reset_scene``."""
        self._data.mocap_pos[:], self._data.mocap_quat[:] = poses[:, :3], poses[:, 3:]

    def advance(self) -> None:
        """Bring the physics up to the clock's present, as any call does."""
        self._advance()

    # ------------------------------------------------------------------ inside

    def _rebase(self) -> None:
        self._t0_s, self._steps = self._clock.now_s(), 0
        self._last_sample = None
        self._history.clear()
        if self._latency_steps:
            self._history.extend([self._sample()] * (self._latency_steps + 1))

    def _advance(self) -> float:
        now_s = self._clock.now_s()
        if not self._connected:
            return now_s
        behind_s = now_s - self._t0_s - self._steps * self._dt_s
        if behind_s > _MAX_CATCH_UP_S:
            self._t0_s += behind_s - _MAX_CATCH_UP_S
        wanted = int((now_s - self._t0_s) / self._dt_s + 1e-6)
        while self._steps < wanted:
            self._substep(self._t0_s + self._steps * self._dt_s)
        return now_s

    def _substep(self, t_s: float) -> None:
        self._deliver(t_s)
        watchdog_s = self.spec.vendor_watchdog_s
        # Armed by the first goal after enable or stop: silence is a fault only in the middle of a motion.
        if self._streaming and watchdog_s is not None and t_s - self._last_command_s > watchdog_s:
            self._tripped, self._streaming = True, False
            self._rest()
        self._apply()
        mujoco.mj_step(self._model, self._data)
        self._steps += 1
        if self._latency_steps:
            self._history.append(self._sample())

    def _deliver(self, t_s: float) -> None:
        """Goals reach the drives once their latency is over, unless they are too old or the arm stopped itself."""
        while self._pending and self._pending[0][0] <= t_s + 1e-9:
            _, valid_until_s, values, opening_m = self._pending.popleft()
            if not self._tripped and t_s <= valid_until_s:
                self._goal, self._opening_goal_m = values, opening_m

    def _rest(self) -> None:
        self._pending.clear()
        self._goal = self._measured()

    def _torque(self) -> BoolArray:
        on = np.full(self.spec.num_joints, self._enabled)
        on[list(self.faults.torque_lost)] = False
        return on

    def _apply(self) -> None:
        """Goals and torque into the model; brakes hold a joint that has no torque."""
        driven = self._torque() | self.spec.has_brakes
        gain, bias = self._model.actuator_gainprm, self._model.actuator_biasprm
        gain[self._act] = np.where(driven[:, None], self._gain[self._act], 0.0)
        bias[self._act] = np.where(driven[:, None], self._bias[self._act], 0.0)
        self._data.ctrl[self._act] = self._goal
        if self._gripper >= 0:
            self._data.ctrl[self._gripper] = self._opening_goal_m / self._gripper_scale

    def _measured(self) -> Array:
        return self._data.qpos[self._qpos].copy()

    def _opening(self) -> float:
        return 0.0 if self._fingers is None else float(self._gripper_scale * self._data.qpos[self._fingers].sum())

    def _ticks(self, values: Array) -> Array:
        tick = self.config.tick_rad
        return np.round(values / tick) * tick if tick else np.array(values, dtype=np.float64)

    def _sample(self) -> _Sample:
        return _Sample(
            t_s=self._t0_s + self._steps * self._dt_s,
            position=self._measured(),
            velocity=self._data.qvel[self._dof].copy(),
            effort=self._data.actuator_force[self._act].copy(),
            goal=self._goal.copy(),
            enabled=self._torque(),
            gripper_m=self._opening(),
        )

    def _check_link(self) -> None:
        if self.faults.link_cut:
            raise CommunicationError("the link to the arm is cut")
