"""What travels between the gate and an arm: SI units, radians, wxyz, ``time.monotonic()`` seconds in every ``t_…_s``.

n is the number of joints without the gripper. Arrays are float64 and read-only once inside one of these classes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
BoolArray = NDArray[np.bool_]


class HardwareError(Exception):
    """Base of every error that this package raises on purpose."""


class SpecError(HardwareError, ValueError):
    """A limit, a shape or a setting is impossible; the message says what was found and what is allowed."""


class StaleStateError(HardwareError):
    """A read gave no fresh data within its time."""


class CommunicationError(HardwareError):
    """The link to the arm is gone, or a write failed."""


class RefusedError(HardwareError):
    """The arm or the gate declined an operation; the message names the rule."""


class ControlMode(Enum):
    """Meaning of a command's values."""

    JOINT_POSITION = "joint_position"
    JOINT_VELOCITY = "joint_velocity"
    CARTESIAN_DELTA = "cartesian_delta"


class StopKind(Enum):
    """Stop categories 2, 1 and 0 of IEC 60204-1."""

    HOLD = "hold"
    CONTROLLED = "controlled"
    POWER_OFF = "power_off"


class ArmFault(Enum):
    """Causes an arm can report, whatever its vendor calls them."""

    COMM_LOST = "comm_lost"
    STALE = "stale"
    OVERLOAD = "overload"
    OVERHEAT = "overheat"
    VOLTAGE = "voltage"
    OVERCURRENT = "overcurrent"
    ENCODER = "encoder"
    TORQUE_DROPPED = "torque_dropped"
    POSITION_LIMIT = "position_limit"
    COLLISION = "collision"
    VENDOR_STOP = "vendor_stop"
    VENDOR_ESTOP = "vendor_estop"
    MODE = "mode"
    CALIBRATION = "calibration"
    UNKNOWN = "unknown"


class Source(Enum):
    """Who asked for a motion or an operation."""

    POLICY = "policy"
    HUMAN = "human"
    SCRIPT = "script"
    GATE = "gate"


class OnLinkLoss(Enum):
    """What the arm does by itself when commands stop."""

    HOLDS_GOAL = "holds_goal"
    LIMP = "limp"
    STOPS = "stops"


class FaultReport(NamedTuple):
    """One fault of an arm: joint index (-1: the whole arm) and the vendor's raw code."""

    fault: ArmFault
    joint: int
    raw: int


class Pose(NamedTuple):
    """Position (m) and unit quaternion wxyz in the base frame."""

    position_m: tuple[float, float, float]
    quaternion: tuple[float, float, float, float]


class Wrench(NamedTuple):
    """Force (N) and torque (N·m) in the base frame."""

    force_n: tuple[float, float, float]
    torque_n_m: tuple[float, float, float]


class Clock(Protocol):
    """Monotonic seconds, and a way to wait for them."""

    def now_s(self) -> float: ...

    def sleep_until(self, t_s: float) -> None: ...


def frozen(values: Any) -> Array:
    """A float64 copy of ``values`` that can't be written to."""
    array = np.array(values, dtype=np.float64)
    array.flags.writeable = False
    return array


def _positive(owner: str, **values: float) -> None:
    for name, value in values.items():
        if not (math.isfinite(value) and value > 0):
            raise SpecError(f"{owner}: {name}={value!r}, expected a finite number above 0")


@dataclass(frozen=True, slots=True)
class JointSpec:
    """Limits of one joint as its maker states them; the gate works inside them."""

    name: str
    position_min_rad: float
    position_max_rad: float
    velocity_max_rad_s: float
    acceleration_max_rad_s2: float
    jerk_max_rad_s3: float
    effort_max_n_m: float = math.inf
    resolution_rad: float = 0.0
    """Smallest step of the encoder; 0 when it is far below anything the gate looks at."""
    kind: str = "revolute"

    def __post_init__(self) -> None:
        owner = f"joint {self.name!r}"
        _positive(
            owner,
            velocity_max_rad_s=self.velocity_max_rad_s,
            acceleration_max_rad_s2=self.acceleration_max_rad_s2,
            jerk_max_rad_s3=self.jerk_max_rad_s3,
        )
        low, high = self.position_min_rad, self.position_max_rad
        if not (math.isfinite(low) and math.isfinite(high) and low < high):
            raise SpecError(f"{owner}: positions [{low}, {high}], expected finite numbers with min < max")
        if not 0 <= self.resolution_rad < high - low:
            raise SpecError(f"{owner}: resolution_rad={self.resolution_rad}, expected at least 0 and below the range")


@dataclass(frozen=True, slots=True)
class GripperSpec:
    """A gripper commanded by its full opening."""

    stroke_min_m: float
    stroke_max_m: float
    force_max_n: float = math.inf
    velocity_max_m_s: float = 0.2
    """Rate of the commanded opening."""

    def __post_init__(self) -> None:
        _positive("gripper", velocity_max_m_s=self.velocity_max_m_s)
        if not 0 <= self.stroke_min_m < self.stroke_max_m < math.inf:
            raise SpecError(f"gripper stroke [{self.stroke_min_m}, {self.stroke_max_m}] m, expected 0 <= min < max")


@dataclass(frozen=True, slots=True)
class ArmSpec:
    """What an arm is, known before connecting."""

    name: str
    joints: tuple[JointSpec, ...]
    gripper: GripperSpec | None = None
    modes: tuple[ControlMode, ...] = (ControlMode.JOINT_POSITION,)
    command_hz: tuple[float, float, float] = (20.0, 100.0, 500.0)
    """Lowest, nominal and highest command rate."""
    state_hz: float = 100.0
    state_latency_s: float = 0.0
    """Age of a sample when it reaches us."""
    command_latency_s: float = 0.0
    """Time from ``send`` to the drives acting on it."""
    measures: frozenset[str] = frozenset({"velocity"})
    """Among velocity, effort, current, temperature, voltage, wrench, goal_echo, enabled."""
    has_brakes: bool = False
    on_link_loss: OnLinkLoss = OnLinkLoss.HOLDS_GOAL
    vendor_watchdog_s: float | None = None
    """Silence after which the arm stops by itself; None: it never does."""
    tcp_body: str = ""
    model_file: str = ""

    def __post_init__(self) -> None:
        if not self.joints:
            raise SpecError(f"arm {self.name!r} has no joints")
        low, nominal, high = self.command_hz
        if not 0 < low <= nominal <= high:
            raise SpecError(
                f"arm {self.name!r}: command_hz={self.command_hz}, expected 0 < lowest <= nominal <= highest"
            )
        _positive(f"arm {self.name!r}", state_hz=self.state_hz)

    @property
    def num_joints(self) -> int:
        """Number of joints n, without the gripper."""
        return len(self.joints)

    @property
    def row_size(self) -> int:
        """Length of a command row: the joints, then the gripper opening where there is one."""
        return len(self.joints) + (self.gripper is not None)

    def column(self, field_name: str) -> Array:
        """One field of all joints as an array [n]."""
        return frozen([getattr(joint, field_name) for joint in self.joints])


@dataclass(frozen=True, slots=True, eq=False)
class ArmState:
    """One sample of the arm. Optional entries are None where the arm doesn't measure them."""

    seq: int
    t_sample_s: float
    t_received_s: float
    position_rad: Array
    """[n]."""
    velocity_rad_s: Array
    """[n]."""
    gripper_m: float = 0.0
    effort_n_m: Array | None = None
    current_a: Array | None = None
    temperature_c: Array | None = None
    voltage_v: Array | None = None
    enabled: BoolArray | None = None
    """[n] torque on."""
    goal_echo_rad: Array | None = None
    """[n] the goal the drives hold now."""
    tcp: Pose | None = None
    wrench: Wrench | None = None
    vendor_mode: str = ""
    faults: tuple[FaultReport, ...] = field(default_factory=tuple)


@dataclass(frozen=True, slots=True, eq=False)
class ArmCommand:
    """One setpoint for the drives; an arm ignores it after ``t_valid_until_s``."""

    seq: int
    t_created_s: float
    t_valid_until_s: float
    mode: ControlMode
    values: Array
    """[n] rad, or rad/s in JOINT_VELOCITY."""
    gripper_m: float
    source: Source


@dataclass(frozen=True, slots=True, eq=False)
class ActionChunk:
    """What a policy asks for: rows [H, n] or [H, n+1] (joint positions in rad, then the gripper opening in m).

    Row i is due at ``t0_s + i * dt_s``; between rows the target moves linearly. ``obs_seq`` and ``t_obs_s`` tie it
    to what the policy saw.
    """

    seq: int
    obs_seq: int
    t_obs_s: float
    t0_s: float
    dt_s: float
    values: NDArray[Any]
    policy_id: str = ""
    source: Source = Source.POLICY

    @property
    def t_end_s(self) -> float:
        """When the last row has had its full control step."""
        return self.t0_s + len(self.values) * self.dt_s
