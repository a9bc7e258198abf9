"""Settings of the safety gate. Every interlock has a range that it can't be set out of; none can be switched off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from hardware.types import SpecError

_RANGES: Final[dict[str, tuple[float, float]]] = {
    "tick_s": (0.001, 0.05),
    "velocity_rad_s": (0.01, 3.0),
    "velocity_fraction": (0.01, 1.0),
    "acceleration_rad_s2": (0.1, 30.0),
    "jerk_rad_s3": (1.0, 10_000.0),
    "speed_scale": (0.01, 1.0),
    "position_margin_rad": (0.0, 0.5),
    "position_tolerance_rad": (0.001, 0.1),
    "jump_rad": (0.01, 0.5),
    "ramp_s": (0.1, 10.0),
    "ramp_start_scale": (0.01, 1.0),
    "ramp_start_rad": (0.01, 0.5),
    "tracking_error_rad": (0.01, 0.6),
    "reference_error_rad": (0.02, 0.6),
    "tracking_time_s": (0.01, 1.0),
    "open_loop_s": (0.02, 2.0),
    "first_chunk_s": (0.1, 60.0),
    "observation_age_s": (0.02, 2.0),
    "stale_hold_s": (0.002, 0.3),
    "stale_fault_s": (0.01, 1.0),
    "missed_reads_fault": (2, 100),
    "plausible_factor": (1.0, 3.0),
    "echo_ticks": (1, 20),
    "clear_s": (0.1, 10.0),
    "estop_brake_s": (0.05, 1.0),
}


@dataclass(frozen=True, slots=True)
class GateConfig:
    """Defaults suit a small servo arm at 100 Hz; ``cobot()`` an industrial one. SpecError names a wrong setting."""

    tick_s: float = 0.01
    """Control period n."""
    velocity_rad_s: float = 1.5
    """Joint speed limit V (4); the vendor's limit times ``velocity_fraction`` also holds."""
    velocity_fraction: float = 1.0
    acceleration_rad_s2: float = 8.0
    """Joint acceleration limit a (5); never above the vendor's."""
    jerk_rad_s3: float = 80.0
    """Joint jerk limit J (5); never above the vendor's. Costs a delay of a/(2J) seconds."""
    speed_scale: float = 1.0
    """Slows V after the ramp-in, for first trials."""
    position_margin_rad: float = 0.05
    """Targets stay this far inside the joint limits (3)."""
    position_tolerance_rad: float = 0.02
    """A measured joint may exceed its limit by this much (3)."""
    jump_rad: float = 0.1
    """What a target may jump beyond V times the policy's period (6)."""
    ramp_s: float = 2.0
    """Speed grows from ``ramp_start_scale`` to full over this time after every start (7)."""
    ramp_start_scale: float = 0.1
    ramp_start_rad: float = 0.1
    """How far from the arm the first motion may start (7)."""
    tracking_error_rad: float = 0.25
    """Lag behind the reference tolerated for ``tracking_time_s`` (14)."""
    reference_error_rad: float = 0.5
    """Targets stay this close to the measured joints (12), which bounds how hard the arm presses on what stops it.
    Below ``tracking_error_rad`` it acts first: a blocked arm then presses gently instead of being held (14)."""
    tracking_time_s: float = 0.2
    open_loop_s: float = 0.4
    """Longest motion on one chunk without a newer one (15)."""
    first_chunk_s: float = 10.0
    """How long an enabled arm waits for the first chunk (15)."""
    observation_age_s: float = 0.5
    """Oldest observation a chunk may come from (2)."""
    stale_hold_s: float = 0.02
    """Sample age beyond the arm's latency that holds (16)."""
    stale_fault_s: float = 0.1
    """Sample age that faults, and the pause between two ticks that holds (16)."""
    missed_reads_fault: int = 10
    """Reads missed in a row that count as a lost link (30)."""
    plausible_factor: float = 1.5
    """A sample may imply this many times the vendor's joint speed (19)."""
    echo_ticks: int = 3
    """Ticks the drives' goal may differ from what was sent (20)."""
    clear_s: float = 0.5
    """How long every soft rule must be quiet before a HOLD can be reset."""
    estop_brake_s: float = 0.3
    """Time an emergency stop has to brake along the limits before power is cut or the drives hold."""
    auto_resume: bool = False
    """Leave a HOLD that a late policy caused (15) when a valid chunk arrives, at most three times a minute."""

    def __post_init__(self) -> None:
        for name, (low, high) in _RANGES.items():
            value = getattr(self, name)
            if not low <= value <= high:  # also refuses NaN
                raise SpecError(f"gate {name}={value!r}, expected {low} to {high}; an interlock can't be switched off")
        if self.stale_fault_s < self.stale_hold_s:
            raise SpecError(f"gate stale_fault_s={self.stale_fault_s} is below stale_hold_s={self.stale_hold_s}")

    @classmethod
    def at_vendor_limits(cls) -> GateConfig:
        """The maker's own speed, acceleration and jerk: for simulated arms, and for policies trained at full speed."""
        return cls(velocity_rad_s=3.0, acceleration_rad_s2=30.0, jerk_rad_s3=10_000.0)

    @classmethod
    def cobot(cls) -> GateConfig:
        """Industrial arm: half of the vendor's speed, 5 rad/s², 50 rad/s³, tight jump and tracking."""
        return cls(
            velocity_rad_s=3.0,
            velocity_fraction=0.5,
            acceleration_rad_s2=5.0,
            jerk_rad_s3=50.0,
            jump_rad=0.05,
            tracking_error_rad=0.05,
        )
