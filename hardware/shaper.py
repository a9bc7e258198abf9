"""From the row that is due to the command that may be sent: ramp-in, limiter, gripper rate, and a last look."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from hardware.gate_config import GateConfig
from hardware.interlocks import Rule, lasting_speed, row_at
from hardware.limits import JointLimiter, limit_gripper
from hardware.types import ActionChunk, ArmSpec, Array, HardwareError, frozen

_FILTERED_FRACTION, _FILTERED_TICKS = 0.05, 10
"""A joint whose speed differs by 5 % of its limit for ten ticks in a row counts as filtered."""


class Shaped(NamedTuple):
    """One limited command: joints [n] rad, opening m, and a bit mask of the rules that changed it."""

    joints: Array
    gripper_m: float
    rules: int


class CommandShaper:
    """Owns the reference that the arm follows."""

    def __init__(self, spec: ArmSpec, config: GateConfig) -> None:
        self._spec, self._config = spec, config
        self.speed = np.minimum(config.velocity_rad_s, config.velocity_fraction * spec.column("velocity_max_rad_s"))
        """[n] rad/s: the gate's own limit V."""
        self._low = spec.column("position_min_rad") + config.position_margin_rad
        self._high = spec.column("position_max_rad") - config.position_margin_rad
        self._limiter = JointLimiter(
            low=self._low,
            high=self._high,
            velocity=self.speed,
            acceleration=np.minimum(config.acceleration_rad_s2, spec.column("acceleration_max_rad_s2")),
            jerk=np.minimum(config.jerk_rad_s3, spec.column("jerk_max_rad_s3")),
            dt_s=config.tick_s,
        )
        self._differs = np.zeros(spec.num_joints, dtype=np.int64)  # ticks in a row, by joint
        self._ramp_since_s: float | None = None
        self.target = self._limiter.output
        """[n] what was asked at the last tick; the reference itself while nothing is asked."""
        self.gripper_target_m = 0.0
        self.gripper_m = 0.0

    @property
    def output(self) -> Array:
        """[n] the reference, as last sent."""
        return self._limiter.output

    @property
    def band(self) -> tuple[Array, Array]:
        """[n] and [n]: the interval between the last target and the reference, which trails it or runs past it."""
        return np.minimum(self.target, self.output), np.maximum(self.target, self.output)

    @property
    def at_rest(self) -> bool:
        """Whether the reference stands still."""
        return self._limiter.at_rest()

    @property
    def moved(self) -> bool:
        """Whether the ramp-in has begun."""
        return self._ramp_since_s is not None

    def seed(self, joints: Array, gripper_m: float) -> None:
        """Start at rest at the measured pose."""
        self._limiter.seed(joints)
        self.target = self._limiter.output
        self.gripper_m = self.gripper_target_m = gripper_m
        self.restart_ramp()

    def restart_ramp(self) -> None:
        """The next motion begins slowly."""
        self._ramp_since_s = None
        self._differs[:] = 0

    def begin_ramp(self, now_s: float) -> None:
        """The first motion starts now; later calls change nothing."""
        if self._ramp_since_s is None:
            self._ramp_since_s = now_s

    def scale(self, now_s: float) -> float:
        """7: the factor on the speed limit grows from the start of the first motion."""
        start = self._config.ramp_start_scale
        grown = 0.0 if self._ramp_since_s is None else (now_s - self._ramp_since_s) / self._config.ramp_s
        return self._config.speed_scale * min(1.0, start + (1.0 - start) * grown)

    def follow(self, chunk: ActionChunk, now_s: float, measured: Array | None = None) -> Shaped:
        """One tick toward the row that is due, no further from the measured joints [n] than the reference error."""
        row = row_at(chunk, now_s)
        n = self._spec.num_joints
        scale, before, previous = self.scale(now_s), self.target, self._limiter.output
        self.target = frozen(row[:n])
        if self._spec.gripper is not None:
            self.gripper_target_m = float(row[n])
        # The chunk tells where its motion ends: feed forward only what outlasts the time to brake.
        speed = lasting_speed(chunk, now_s, self._limiter.braking_time())
        near, most = self.target, self._config.reference_error_rad
        if measured is not None:
            # A stiff arm presses as hard as its reference runs ahead of it: this bounds the force of a contact.
            near = np.clip(self.target, measured - most, measured + most)
        output = self._limiter.step(near, scale, np.where(near == self.target, speed, 0.0))
        held_back = bool((near != self.target).any()) << Rule.REFERENCE_ERROR
        return self._finished(output, previous, self._changes(before, scale) | held_back)

    def due(self, chunk: ActionChunk | None, now_s: float) -> tuple[Array, float]:
        """Joints [n] and opening that ``chunk`` asks for at ``now_s``; the last targets without one."""
        if chunk is None:
            return self.target, self.gripper_target_m
        row, n = row_at(chunk, now_s), self._spec.num_joints
        return frozen(row[:n]), float(row[n]) if self._spec.gripper is not None else 0.0

    def brake(self) -> Shaped:
        """One tick of slowing down; the gripper keeps its last command."""
        previous = self._limiter.output
        self.target = output = self._limiter.brake()
        self.gripper_target_m = self.gripper_m
        return self._finished(output, previous, 0)

    def _changes(self, before: Array, scale: float) -> int:
        """Which of 3, 4, 5 changed the motion that was asked for."""
        asked = (self.target - before) / self._config.tick_s
        outside = ((self.target < self._low) | (self.target > self._high)).any()
        fast = (np.abs(asked) > self.speed * scale * (1 + 1e-6) + 1e-9).any()
        gap = np.abs(asked - self._limiter.output_velocity)
        self._differs = np.where(gap > _FILTERED_FRACTION * self.speed, self._differs + 1, 0)
        filtered = (self._differs >= _FILTERED_TICKS).any()
        rules = 0
        for rule, active in ((Rule.JOINT_POSITION, outside), (Rule.JOINT_SPEED, fast), (Rule.ACCELERATION, filtered)):
            rules |= bool(active) << rule
        return rules

    def _finished(self, output: Array, previous: Array, rules: int) -> Shaped:
        gripper_m = self._limited_gripper()
        self._final_check(output, previous, gripper_m)
        self.gripper_m = gripper_m
        return Shaped(frozen(output), gripper_m, rules)

    def _limited_gripper(self) -> float:
        gripper = self._spec.gripper
        if gripper is None:
            return 0.0
        step_m = gripper.velocity_max_m_s * self._config.tick_s
        low_m, high_m = gripper.stroke_min_m, gripper.stroke_max_m
        return limit_gripper(self.gripper_target_m, self.gripper_m, low_m=low_m, high_m=high_m, step_m=step_m)

    def _final_check(self, output: Array, previous: Array, gripper_m: float) -> None:
        """Independent of the limiter: finite, within speed, and outside the margins only moving inward."""
        moved = output - previous
        outward = ((output < self._low - 1e-9) & (moved < -1e-9)) | ((output > self._high + 1e-9) & (moved > 1e-9))
        fast = np.abs(moved) > self.speed * self._config.tick_s * (1 + 1e-6) + 1e-9
        if not (np.isfinite(output).all() and np.isfinite(gripper_m)) or outward.any() or fast.any():
            raise HardwareError(f"limited command {output.tolist()} after {previous.tolist()} breaks its own limits")
