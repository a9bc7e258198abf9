"""What the scripted experts share: habits, imperfection, and moving a tool toward a pose.

Experts read named observations and write end-effector actions, batched over E environments, so they run on any
simulator that gives those entries. They see nothing a policy wouldn't.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from sims.arm_model import FRANKA
from sims.base import BoolArray, FloatArray

Array = NDArray[np.float64]
CLOSED_M, OPEN_M = 0.0, FRANKA.gripper_max_m
"""Openings that experts ask for; a smaller gripper opens as far as it can."""
NOISE_MEMORY = 0.85
"""Correlation of the action noise from one control step to the next: hands wander, they don't jitter."""


@dataclass(frozen=True, slots=True)
class ExpertConfig:
    """How a demonstrator falls short. All zero is the clean expert."""

    noise_m: float = 0.0
    """Standard deviation of the correlated translation noise per control step."""
    hesitation: float = 0.0
    """Probability per control step of stopping for a few steps."""
    detour_m: float = 0.0
    """Largest sideways distance of a via point on the way to the object."""
    two_ways: float = 0.0
    """Probability of the second way round: the other grasp orientation, the detour on the other side."""
    grasp_error_m: float = 0.0
    """Standard deviation of where on the object the demonstrator aims."""
    speed_spread: float = 0.0
    """Relative spread of speed between demonstrations; 0 ≤ spread < 1."""

    def __post_init__(self) -> None:
        for name in ("hesitation", "two_ways", "speed_spread"):
            if not 0 <= getattr(self, name) < 1.0 + (name == "two_ways"):
                raise ValueError(f"{name}={getattr(self, name)}: expected a fraction from 0 up to 1")
        for name in ("noise_m", "detour_m", "grasp_error_m"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name}={getattr(self, name)}: expected metres, 0 or more")

    @classmethod
    def imperfect(cls, level: float) -> ExpertConfig:
        """One knob from 0 (clean) to 1 (a hurried novice whose demonstrations still mostly succeed)."""
        if not 0 <= level <= 1:
            raise ValueError(f"imperfection={level}: expected a number from 0 (clean) to 1")
        return cls(
            noise_m=0.005 * level,
            hesitation=0.06 * level,
            detour_m=0.08 * level,
            two_ways=0.5 * level,
            grasp_error_m=0.006 * level,
            speed_spread=0.4 * level,
        )


class Expert(Protocol):
    """A batched demonstrator."""

    def reset(self, mask: BoolArray) -> None:
        """Forget the episodes of the environments in ``mask`` [E] and draw new habits for the next ones."""
        ...

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """Obs entries [E, D] → end-effector action [E, 7]."""
        ...


class Habits:
    """What every demonstrator has: phases with a clock, habits drawn per episode, a hand that wanders and hesitates."""

    noise_unit_m: ClassVar[float] = 1.0
    """Metres in one unit of the translations that are disturbed."""

    def __init__(self, num_envs: int, config: ExpertConfig | None = None, *, seed: int = 0) -> None:
        self.config = config or ExpertConfig()
        self._rng = np.random.default_rng(np.random.SeedSequence((seed, 0xE4)))
        self._phase = np.zeros(num_envs, dtype=np.int64)
        self._clock = np.zeros(num_envs, dtype=np.int64)  # control steps spent in the phase
        self._pause = np.zeros(num_envs, dtype=np.int64)
        self._speed, self._side = np.ones(num_envs), np.ones(num_envs)
        self._detour, self._other_way = np.zeros(num_envs), np.zeros(num_envs, dtype=bool)
        self._aim, self._noise = np.zeros((num_envs, 3)), np.zeros((num_envs, 3))
        self.reset(np.ones(num_envs, dtype=bool))

    def reset(self, mask: BoolArray) -> None:
        """See ``Expert.reset``."""
        config, rng, count = self.config, self._rng, int(mask.sum())
        self._phase[mask], self._clock[mask], self._pause[mask] = 0, 0, 0
        self._speed[mask] = 1 + config.speed_spread * rng.uniform(-1, 1, count)
        self._other_way[mask] = rng.random(count) < config.two_ways
        self._side[mask] = np.where(self._other_way[mask], -1.0, 1.0)
        self._detour[mask] = config.detour_m * rng.uniform(0.3, 1.0, count)
        self._aim[mask] = config.grasp_error_m * rng.normal(size=(count, 3)) * (1.0, 1.0, 0.5)
        self._noise[mask] = 0.0

    def _enter(self, phase: int, where: BoolArray) -> None:
        self._phase[where], self._clock[where] = phase, 0

    def _imperfect(self, step: Array, turn: Array) -> tuple[Array, Array]:
        config, rng = self.config, self._rng
        fresh = np.sqrt(1 - NOISE_MEMORY**2) * config.noise_m / self.noise_unit_m * rng.normal(size=step.shape)
        self._noise = NOISE_MEMORY * self._noise + fresh
        starts = (self._pause == 0) & (rng.random(len(step)) < config.hesitation)
        self._pause = np.where(starts, rng.integers(2, 7, len(step)), np.maximum(self._pause - 1, 0))
        moving = (self._pause == 0)[:, None]
        return np.where(moving, step + self._noise, 0.3 * self._noise), np.where(moving, turn, 0.0)


class ToolExpert(Habits):
    """What the native tasks' experts share: moving the tool toward a pose."""

    speed_m = 0.022
    """Translation per control step of the clean expert: 0.44 m/s at 20 Hz."""

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``; each task's expert has its own."""
        raise NotImplementedError

    def _toward(self, state: Array, target: Array, yaw_rad: Array, opening: Array) -> Array:
        """Action [E, 7] that moves the tool toward ``target`` [E, 3], pointing down, turned to ``yaw_rad`` [E].

        state: the arm's part of the entry ``state``, [E, 10 + n].
        """
        step = target - state[:, :3]
        length = np.linalg.norm(step, axis=1, keepdims=True)
        limit = (self.speed_m * self._speed)[:, None]
        step = step * np.minimum(1.0, limit / np.maximum(length, 1e-9))
        zero, cos, sin = np.zeros_like(yaw_rad), np.cos(yaw_rad), np.sin(yaw_rad)
        wanted = np.stack([cos, sin, zero, sin, -cos, zero, zero, zero, zero - 1], axis=1).reshape(-1, 3, 3)
        axes = state[:, 3:9].reshape(-1, 2, 3)
        current = np.concatenate([axes, np.cross(axes[:, 0], axes[:, 1])[:, None]], axis=1)
        turn = 0.5 * np.cross(current, wanted).sum(axis=1)
        step, turn = self._imperfect(step, np.clip(0.5 * turn, -0.12, 0.12))
        self._clock += 1
        return np.concatenate([step, turn, opening[:, None]], axis=1)


def yaw_of(axes: Array) -> Array:
    """Direction [E] (rad) of the x axis of ``axes`` [E, 6] on the table plane."""
    return np.arctan2(axes[:, 1], axes[:, 0])


def nearest_turn(yaw_rad: Array, around: Array, period_rad: float) -> Array:
    """The angle equal to ``yaw_rad`` modulo ``period_rad`` that lies nearest to ``around``."""
    return yaw_rad + period_rad * np.round((around - yaw_rad) / period_rad)
