"""Motion limits as pure functions of arrays [n], and the limiter that applies them tick by tick."""

from __future__ import annotations

import numpy as np

from hardware.types import Array, SpecError


def clamp(values: Array, low: Array, high: Array) -> Array:
    """Clamp values [n] to [low, high]."""
    return np.minimum(np.maximum(values, low), high)


def braking_speed(distance: Array, acceleration: Array, dt_s: float) -> Array:
    """Highest speed [n] from which ``acceleration`` stops within ``distance`` [n] >= 0, in steps of ``dt_s``.

    The exact sampled form of √(2·a·d): braking takes ticks at v, v-aΔ, v-2aΔ, … In units of aΔ and aΔ², with m
    whole steps, (m+1)·v - m(m+1)/2 = d. A speed under this bound stays under it after a tick at that speed and one
    change of aΔ; the smooth √(¼+2d)-½ agrees at whole numbers but is too fast between them.
    """
    step = acceleration * dt_s
    units = distance / (step * dt_s)
    whole = np.floor(np.sqrt(0.25 + 2.0 * units) - 0.5)
    return step * (units + 0.5 * whole * (whole + 1.0)) / (whole + 1.0)


def brake_toward(desired: Array, velocity: Array, acceleration: Array, dt_s: float) -> Array:
    """``desired`` velocity [n], no further than aΔ from the present one."""
    step = acceleration * dt_s
    return clamp(desired, velocity - step, velocity + step)


def average_window(acceleration: Array, jerk: Array, dt_s: float) -> int:
    """Number of ticks N whose moving average turns steps of acceleration into ramps of slope ``jerk``: ⌈a/(J·Δ)⌉."""
    return max(1, int(np.ceil(np.max(acceleration / (jerk * dt_s)) - 1e-9)))


class JointLimiter:
    """Second-order step toward a moving target, then a moving average over N ticks that bounds the jerk.

    Positions stay inside the limits because the step never leaves the braking envelope and an average of inside values
    is inside; speed and acceleration of the average are averages too. Jerk peaks at J (up to 2J when the acceleration
    reverses at once). The average delays by (N-1)Δ/2.
    """

    def __init__(
        self, *, low: Array, high: Array, velocity: Array, acceleration: Array, jerk: Array, dt_s: float
    ) -> None:
        """low, high [n] rad: where targets are clamped to, margins already taken off."""
        if not (np.all(low < high) and dt_s > 0):
            raise SpecError(f"limiter bounds [{low}, {high}] at dt_s={dt_s}: expected low < high and dt_s > 0")
        self._low, self._high, self._dt_s = low, high, dt_s
        self._velocity_max, self._acceleration = velocity, acceleration
        self._window = average_window(acceleration, jerk, dt_s)
        n = len(low)
        self._position, self._velocity = np.zeros(n), np.zeros(n)
        self._ring, self._sum, self._slot = np.zeros((self._window, n)), np.zeros(n), 0
        self._output, self._output_velocity = np.zeros(n), np.zeros(n)

    @property
    def output(self) -> Array:
        """[n] the last limited position."""
        return self._output

    @property
    def output_velocity(self) -> Array:
        """[n] rad/s over the last tick."""
        return self._output_velocity

    def seed(self, position: Array) -> None:
        """Start at rest at ``position`` [n], wherever that is: outside the bounds it may only move inward."""
        self._position, self._velocity = position.copy(), np.zeros_like(position)
        self._ring[:] = position
        self._slot = 0
        self._output, self._output_velocity = position.copy(), np.zeros_like(position)

    def at_rest(self) -> bool:
        """Whether the output stands still and will stay where it is."""
        return not self._velocity.any() and bool(np.all(self._ring == self._position))

    def step(self, target: Array, scale: float = 1.0, feed_forward: Array | None = None) -> Array:
        """One tick toward ``target`` [n]; ``scale`` in (0, 1] slows the speed limit. Returns the new output [n].

        |v| ≤ V and |v - v_prev| ≤ aΔ, toward a target that stands still without overshoot. feed_forward [n] rad/s: the
        target's own speed, where it is known to last; without it the output trails a moving target by v²/2a.
        """
        inside = clamp(target, self._low, self._high)
        moving = np.zeros_like(target) if feed_forward is None else np.where(inside == target, feed_forward, 0.0)
        error = inside - self._position - moving * self._dt_s
        desired = moving + np.copysign(braking_speed(np.abs(error), self._acceleration, self._dt_s), error)
        fastest = self._velocity_max * scale
        # Never faster than the distance to the limit allows: this is what keeps positions inside for good.
        upward = np.minimum(fastest, self._envelope(self._high - self._position))
        downward = np.minimum(fastest, self._envelope(self._position - self._low))
        return self._advance(
            brake_toward(clamp(desired, -downward, upward), self._velocity, self._acceleration, self._dt_s)
        )

    def _envelope(self, distance: Array) -> Array:
        return braking_speed(np.maximum(distance, 0.0), self._acceleration, self._dt_s)

    def braking_time(self) -> Array:
        """[n] seconds to stop from the present speed."""
        return np.abs(self._velocity) / self._acceleration

    def brake(self) -> Array:
        """One tick of slowing down as fast as the limits allow; at rest it repeats the pose. Returns the output [n]."""
        zero = np.zeros_like(self._velocity)
        return self._advance(brake_toward(zero, self._velocity, self._acceleration, self._dt_s))

    def _advance(self, velocity: Array) -> Array:
        self._velocity = velocity
        self._position = self._position + velocity * self._dt_s
        self._ring[self._slot] = self._position
        self._slot = (self._slot + 1) % self._window
        # A fresh mean of at most some ten rows: a running sum would drift over hours.
        output = self._ring.mean(axis=0) if self._window > 1 else self._position.copy()
        self._output_velocity = (output - self._output) / self._dt_s
        self._output = output
        return output


def limit_gripper(target_m: float, current_m: float, *, low_m: float, high_m: float, step_m: float) -> float:
    """Opening inside the stroke, no further than ``step_m`` from the present command."""
    inside = min(max(target_m, low_m), high_m)
    return min(max(inside, current_m - step_m), current_m + step_m)
