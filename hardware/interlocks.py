"""The gate's checks on samples, on chunks and on the motion between them. Each has a number.

Every check returns None or a ``Violation``. A check that raises counts as violated: the gate sees to that.
"""

from __future__ import annotations

from collections import deque
from enum import IntEnum
from typing import NamedTuple

import numpy as np

from hardware.gate_config import GateConfig
from hardware.limits import clamp
from hardware.types import ActionChunk, ArmSpec, ArmState, Array
from hardware.watchdog import RateCounter, Streak, Sustained


class Rule(IntEnum):
    """Interlocks by number."""

    OPERATOR = 0
    FINITE_SHAPE = 1
    CHUNK_TIME = 2
    JOINT_POSITION = 3
    JOINT_SPEED = 4
    ACCELERATION = 5
    COMMAND_JUMP = 6
    RAMP_IN = 7
    REFERENCE_ERROR = 12
    TRACKING = 14
    STALE_COMMAND = 15
    STALE_OBSERVATION = 16
    FROZEN = 17
    PLAUSIBILITY = 19
    TORQUE_ECHO = 20
    VENDOR_FAULT = 22
    ESTOP = 25
    OVERRUN = 27
    COMMUNICATION = 30
    INTERNAL = 43


class Severity(IntEnum):
    """DROP: refuse the chunk or sample only; HOLD: brake and keep the pose; FAULT: needs an operator to clear."""

    DROP = 0
    HOLD = 1
    FAULT = 2


class Violation(NamedTuple):
    """One broken rule."""

    rule: Rule
    severity: Severity
    detail: str


class Motion:
    """What was sent lately: the delayed reference that measured positions are compared with."""

    def __init__(self, spec: ArmSpec, tick_s: float) -> None:
        delay_s = spec.state_latency_s + spec.command_latency_s
        self._delay = max(1, int(np.ceil(delay_s / tick_s)))
        self._sent: deque[Array] = deque(maxlen=self._delay + 8)

    def clear(self) -> None:
        self._sent.clear()

    def add(self, sent: Array) -> None:
        self._sent.append(sent)

    def expected(self) -> Array | None:
        """[n] where the arm was told to be at the time of the newest sample."""
        return self._sent[-self._delay] if len(self._sent) >= self._delay else None

    def recent(self, extra: int = 2) -> list[Array]:
        """Commands the drives may hold at the time of the newest sample: latency, plus ``extra`` ticks of jitter."""
        return list(self._sent)[-(self._delay + extra) :]

    def travel(self, ticks: int) -> float:
        """Largest joint motion (rad) of the delayed reference over the last ``ticks``."""
        if len(self._sent) < self._delay + ticks:
            return 0.0
        return float(np.abs(self._sent[-self._delay] - self._sent[-self._delay - ticks]).max())


class StateMonitor:
    """Admits samples and watches the measured arm."""

    FROZEN_TICKS = 5

    def __init__(self, spec: ArmSpec, config: GateConfig) -> None:
        self._spec, self._config = spec, config
        self.motion = Motion(spec, config.tick_s)
        self._low, self._high = spec.column("position_min_rad"), spec.column("position_max_rad")
        self._speed = config.plausible_factor * spec.column("velocity_max_rad_s")
        self._resolution = spec.column("resolution_rad")
        self.state: ArmState | None = None
        self.missed = Streak(config.missed_reads_fault)
        self._implausible = Streak(2)
        self._tracking = Sustained(config.tracking_time_s)
        self._echo = Streak(config.echo_ticks)
        self._identical = 0

    def reset(self) -> None:
        """Forget everything; the next sample is admitted without a predecessor."""
        self.state = None
        for timer in (self.missed, self._implausible, self._echo):
            timer.reset()
        self._tracking.reset()
        self._identical = 0
        self.motion.clear()

    def admit(self, sample: ArmState) -> Violation | None:
        """Make ``sample`` the current state, or drop it (19): not finite, wrong shape, farther than it can move."""
        reason = self._implausibility(sample)
        if reason is not None:
            severity = Severity.FAULT if self._implausible.update(True) else Severity.DROP
            return Violation(Rule.PLAUSIBILITY, severity, reason)
        self._implausible.reset()
        last = self.state
        same = last is not None and np.array_equal(last.position_rad, sample.position_rad)
        self._identical = self._identical + 1 if same else 0
        self.state = sample
        return None

    def _implausibility(self, sample: ArmState) -> str | None:
        n = self._spec.num_joints
        for name, array in (("position", sample.position_rad), ("velocity", sample.velocity_rad_s)):
            if array.shape != (n,):
                return f"{name} has shape {array.shape}, expected ({n},)"
            if not np.isfinite(array).all():
                return f"{name} is not finite: {array.tolist()}"
        if self.state is None:
            return None
        elapsed_s = max(sample.t_sample_s - self.state.t_sample_s, self._config.tick_s)
        moved = np.abs(sample.position_rad - self.state.position_rad)
        over = moved > self._speed * elapsed_s + 2 * self._resolution + 1e-9
        if over.any():
            joint = int(np.argmax(over))
            return f"joint {joint} moved {moved[joint]:.4f} rad in {elapsed_s * 1e3:.0f} ms"
        return None

    def vendor_fault(self, state: ArmState, now_s: float) -> Violation | None:  # noqa: ARG002 - one signature for all
        """22: any fault the arm reports."""
        if not state.faults:
            return None
        listed = ", ".join(f"{f.fault.value} joint {f.joint} raw {f.raw:#x}" for f in state.faults)
        return Violation(Rule.VENDOR_FAULT, Severity.FAULT, listed)

    def stale_observation(self, state: ArmState, now_s: float) -> Violation | None:
        """16: age of the sample beyond the arm's known latency, or a sample from the future (its clock is wrong)."""
        ahead_s = state.t_sample_s - now_s
        if ahead_s > self._config.tick_s:
            severity = Severity.FAULT if ahead_s > self._config.stale_fault_s else Severity.HOLD
            return Violation(Rule.STALE_OBSERVATION, severity, f"sample is {ahead_s * 1e3:.0f} ms in the future")
        age_s = now_s - state.t_sample_s - self._spec.state_latency_s
        if age_s <= self._config.stale_hold_s:
            return None
        severity = Severity.FAULT if age_s > self._config.stale_fault_s else Severity.HOLD
        return Violation(Rule.STALE_OBSERVATION, severity, f"sample is {age_s * 1e3:.0f} ms late")

    def measured_position(self, state: ArmState, now_s: float) -> Violation | None:  # noqa: ARG002
        """3: a measured joint outside its limits."""
        h, q = self._config.position_tolerance_rad, state.position_rad
        outside = (q < self._low - h) | (q > self._high + h)
        if not outside.any():
            return None
        joint = int(np.argmax(outside))
        limits = f"[{self._low[joint]:.3f}, {self._high[joint]:.3f}]"
        return Violation(Rule.JOINT_POSITION, Severity.FAULT, f"joint {joint} at {q[joint]:.3f} rad, limits {limits}")

    def torque_dropped(self, state: ArmState, now_s: float) -> Violation | None:  # noqa: ARG002
        """20: a joint without torque while it should hold."""
        if "enabled" not in self._spec.measures:
            return None
        if state.enabled is None:
            return Violation(Rule.TORQUE_ECHO, Severity.FAULT, "the arm declares 'enabled' but did not report it")
        if state.enabled.all():
            return None
        return Violation(Rule.TORQUE_ECHO, Severity.FAULT, f"torque is off at joint {int(np.argmin(state.enabled))}")

    def echo_mismatch(self, state: ArmState, now_s: float) -> Violation | None:  # noqa: ARG002
        """20: the goal in the drives is none of those sent lately, several ticks in a row."""
        recent = self.motion.recent()
        if "goal_echo" not in self._spec.measures or not recent:
            return None
        if state.goal_echo_rad is None:
            return Violation(Rule.TORQUE_ECHO, Severity.FAULT, "the arm declares 'goal_echo' but did not report it")
        tolerance = 2 * self._resolution + 1e-6
        known = (np.abs(np.stack(recent) - state.goal_echo_rad) <= tolerance).all(axis=1).any()
        if not self._echo.update(not known):
            return None
        return Violation(Rule.TORQUE_ECHO, Severity.FAULT, "the drives' goal is not what was sent: writes are lost")

    def tracking(self, state: ArmState, now_s: float) -> Violation | None:
        """14: the arm doesn't follow, compared with the reference of the sample's own time."""
        expected = self.motion.expected()
        if expected is None:
            return None
        error = np.abs(expected - state.position_rad)
        if not self._tracking.update(bool(error.max() > self._config.tracking_error_rad), now_s):
            return None
        joint = int(np.argmax(error))
        return Violation(Rule.TRACKING, Severity.HOLD, f"joint {joint} is {error[joint]:.3f} rad behind its reference")

    def frozen(self, state: ArmState, now_s: float) -> Violation | None:  # noqa: ARG002
        """17: bit-identical positions while the arm was told to move."""
        moved = self.motion.travel(self.FROZEN_TICKS)
        if self._identical < self.FROZEN_TICKS or moved <= max(0.02, 3 * float(self._resolution.max())):
            return None
        detail = f"{self._identical} equal samples while the target moved {moved:.3f} rad"
        return Violation(Rule.FROZEN, Severity.HOLD, detail)


Band = tuple[Array, Array]
"""Lowest and highest position [n] of where the gate leads the arm: its last target and its reference."""


class ChunkMonitor:
    """Judges chunks before they may drive the arm."""

    OUTSIDE_RAD = 0.5

    def __init__(self, spec: ArmSpec, config: GateConfig, speed: Array) -> None:
        """``speed`` [n] rad/s is the gate's own limit."""
        self._spec, self._config, self._speed = spec, config, speed
        self._low = spec.column("position_min_rad") + config.position_margin_rad
        self._high = spec.column("position_max_rad") - config.position_margin_rad
        self._dropped = RateCounter(3, 1.0)
        self._last_seq, self._last_t0_s = -1, -np.inf

    def reset(self) -> None:
        """Accept any sequence number and start time next."""
        self._last_seq, self._last_t0_s = -1, -np.inf
        self._dropped.reset()

    def accept(self, chunk: ActionChunk) -> None:
        """Remember a chunk that passed."""
        self._last_seq, self._last_t0_s = chunk.seq, chunk.t0_s

    def finite_shape(self, chunk: ActionChunk, band: Band, now_s: float) -> Violation | None:  # noqa: ARG002
        """1: rows [H, A] of finite floats, finite times, a step between 0 and ``open_loop_s``."""
        values = chunk.values
        expected = f"float [H, {self._spec.row_size}] with H >= 1"
        if getattr(values, "dtype", np.dtype(object)).kind != "f":
            found = getattr(values, "dtype", type(values).__name__)
            return Violation(Rule.FINITE_SHAPE, Severity.HOLD, f"chunk is {found}, expected {expected}")
        if values.ndim != 2 or values.shape[1] != self._spec.row_size or not len(values):
            return Violation(Rule.FINITE_SHAPE, Severity.HOLD, f"chunk has shape {values.shape}, expected {expected}")
        if not np.isfinite(values).all():
            where = np.argwhere(~np.isfinite(values))[0].tolist()
            return Violation(Rule.FINITE_SHAPE, Severity.HOLD, f"chunk is not finite at row, column {where}")
        if not np.isfinite([chunk.t0_s, chunk.t_obs_s, chunk.dt_s]).all():
            return Violation(Rule.FINITE_SHAPE, Severity.HOLD, f"times {chunk.t0_s}, {chunk.t_obs_s}, {chunk.dt_s}")
        # The allowed jump grows with dt_s, so dt_s is bounded too.
        if not 0 < chunk.dt_s <= self._config.open_loop_s:
            detail = f"dt_s={chunk.dt_s}, expected above 0, at most open_loop_s={self._config.open_loop_s}"
            return Violation(Rule.FINITE_SHAPE, Severity.HOLD, detail)
        return None

    def order_and_time(self, chunk: ActionChunk, band: Band, now_s: float) -> Violation | None:  # noqa: ARG002
        """2: newer than the last, from a recent observation, due about now; the third drop within a second holds."""
        age_s = now_s - chunk.t_obs_s
        if chunk.seq <= self._last_seq:
            reason = f"sequence {chunk.seq} after {self._last_seq}"
        elif chunk.t0_s < self._last_t0_s:
            reason = f"starts {self._last_t0_s - chunk.t0_s:.3f} s before the previous chunk"
        elif not 0 <= age_s <= self._config.observation_age_s:
            reason = f"observation is {age_s:.3f} s old, allowed {self._config.observation_age_s} s"
        elif abs(chunk.t0_s - now_s) > self._config.open_loop_s:
            reason = f"starts {chunk.t0_s - now_s:+.3f} s from now, allowed {self._config.open_loop_s} s either way"
        else:
            return None
        severity = Severity.HOLD if self._dropped.add(now_s) else Severity.DROP
        return Violation(Rule.CHUNK_TIME, severity, reason)

    def jump(self, chunk: ActionChunk, band: Band, now_s: float) -> Violation | None:
        """6: the row due now is far from where the arm is led, or two rows are farther apart than the arm may move.

        The gate's own lag or overshoot is no jump of the policy, so anything between target and reference is near.
        """
        n = self._spec.num_joints
        allowed = self._speed * chunk.dt_s + self._config.jump_rad
        joints = chunk.values[:, :n]
        row = row_at(chunk, now_s)[:n]
        inside = clamp(row, self._low, self._high)
        # A target that drifts out of range is clamped (3), one far out of range is nonsense.
        far = (np.abs(inside - clamp(inside, *band)) > allowed) | (np.abs(row - inside) > self.OUTSIDE_RAD)
        if far.any():
            joint = int(np.argmax(far))
            return Violation(
                Rule.COMMAND_JUMP,
                Severity.HOLD,
                f"joint {joint} asked for {row[joint]:.3f} rad, led to {band[0][joint]:.3f} to {band[1][joint]:.3f}",
            )
        gaps = np.abs(np.diff(joints, axis=0)) > allowed
        if gaps.any():
            row, joint = np.argwhere(gaps)[0].tolist()
            return Violation(Rule.COMMAND_JUMP, Severity.HOLD, f"joint {joint} jumps between rows {row} and {row + 1}")
        return None

    def first_row(self, chunk: ActionChunk, band: Band, now_s: float) -> Violation | None:
        """7: the first chunk after a start begins where the arm is."""
        n = self._spec.num_joints
        row = row_at(chunk, now_s)[:n]
        away = np.abs(row - clamp(row, *band)).max()
        if away <= self._config.ramp_start_rad:
            return None
        return Violation(Rule.RAMP_IN, Severity.HOLD, f"the first motion starts {away:.3f} rad away from the arm")


def row_at(chunk: ActionChunk, now_s: float) -> Array:
    """The target due at ``now_s``: linear between rows, the first row before its time, the last row after its time."""
    phase = (now_s - chunk.t0_s) / chunk.dt_s
    last = len(chunk.values) - 1
    if phase <= 0:
        return chunk.values[0]
    if phase >= last:
        return chunk.values[last]
    row = int(phase)
    fraction = phase - row
    return (1.0 - fraction) * chunk.values[row] + fraction * chunk.values[row + 1]


def lasting_speed(chunk: ActionChunk, now_s: float, ahead_s: Array) -> Array:
    """Speed [n] rad/s that the rows keep from ``now_s`` until ``ahead_s`` [n] later: zero across a stop or a reversal.

    Of the speeds now and then, the smaller one if both have the same sign.
    """
    n, last = len(ahead_s), len(chunk.values) - 1
    joints = np.arange(n)

    def speed(t_s: Array | float) -> Array:
        row = np.floor((np.zeros(n) + t_s - chunk.t0_s) / chunk.dt_s).astype(int)
        within = (row >= 0) & (row < last)
        row = np.clip(row, 0, max(last - 1, 0))
        step = chunk.values[np.minimum(row + 1, last), joints] - chunk.values[row, joints]
        return np.where(within, step / chunk.dt_s, 0.0)

    now, then = speed(now_s), speed(now_s + ahead_s)
    return np.where(now * then > 0, np.copysign(np.minimum(np.abs(now), np.abs(then)), now), 0.0)
