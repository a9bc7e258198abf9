"""Scripted experts for the native tasks, with a knob of human imperfection.

Experts read named observations and write end-effector actions, batched over E environments, so they run on any
simulator that gives those entries. They see nothing a policy wouldn't.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from sims.arm_model import FRANKA
from sims.base import BoolArray, FloatArray

Array = NDArray[np.float64]
CLOSED_M = 0.0
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


class ToolExpert:
    """What the experts share: habits per episode, moving the tool toward a pose, imperfection."""

    speed_m = 0.022
    """Translation per control step of the clean expert: 0.44 m/s at 20 Hz."""

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

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``; each task's expert has its own."""
        raise NotImplementedError

    def _enter(self, phase: int, where: BoolArray) -> None:
        self._phase[where], self._clock[where] = phase, 0

    def _toward(self, obs: Mapping[str, FloatArray], target: Array, yaw_rad: Array, opening: Array) -> Array:
        """Action [E, 7] that moves the tool toward ``target`` [E, 3], pointing down, turned to ``yaw_rad`` [E]."""
        state = obs["state"].astype(np.float64)
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

    def _imperfect(self, step: Array, turn: Array) -> tuple[Array, Array]:
        config, rng = self.config, self._rng
        fresh = np.sqrt(1 - NOISE_MEMORY**2) * config.noise_m * rng.normal(size=step.shape)
        self._noise = NOISE_MEMORY * self._noise + fresh
        starts = (self._pause == 0) & (rng.random(len(step)) < config.hesitation)
        self._pause = np.where(starts, rng.integers(2, 7, len(step)), np.maximum(self._pause - 1, 0))
        moving = (self._pause == 0)[:, None]
        return np.where(moving, step + self._noise, 0.3 * self._noise), np.where(moving, turn, 0.0)


def yaw_of(axes: Array) -> Array:
    """Direction [E] (rad) of the x axis of ``axes`` [E, 6] on the table plane."""
    return np.arctan2(axes[:, 1], axes[:, 0])


def nearest_turn(yaw_rad: Array, around: Array, period_rad: float) -> Array:
    """The angle equal to ``yaw_rad`` modulo ``period_rad`` that lies nearest to ``around``."""
    return yaw_rad + period_rad * np.round((around - yaw_rad) / period_rad)


class ReachExpert(ToolExpert):
    """Go to the goal, perhaps by a via point at its side."""

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``."""
        tcp, goal = obs["state"][:, :3].astype(np.float64), obs["environment_state"][:, :3].astype(np.float64)
        via = goal + (self._side * self._detour)[:, None] * (0.0, 1.0, 0.0)
        arrived = np.linalg.norm(via - tcp, axis=1) < 0.03
        self._enter(1, (self._phase == 0) & (arrived | (self._clock > 25) | (self._detour == 0)))
        target = np.where((self._phase == 0)[:, None], via, goal)
        zero = np.zeros(len(tcp))
        return self._toward(obs, target, zero, zero + FRANKA.gripper_max_m)


class LiftExpert(ToolExpert):
    """Hover above the cube, turn with it, descend, close, raise; start again when the cube was lost."""

    HOVER, DESCEND, CLOSE, RAISE = 0, 1, 2, 3
    hover_m = 0.09

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``."""
        state, scene = obs["state"].astype(np.float64), obs["environment_state"].astype(np.float64)
        tcp, opening, cube = state[:, :3], state[:, 9], scene[:, :3]
        yaw = nearest_turn(yaw_of(scene[:, 3:9]), np.where(self._other_way, -1.0, 0.0), np.pi / 2)
        grasp = cube + self._aim * (1.0, 1.0, 0.0) + (0.0, 0.0, 1.0) * np.maximum(self._aim[:, 2:], -0.006)
        offset = np.linalg.norm((tcp - grasp)[:, :2], axis=1)
        misturned = np.abs(np.sin(yaw_of(state[:, 3:9]) - yaw))
        aligned = (offset < 0.008) & (misturned < 0.12)
        self._enter(self.DESCEND, (self._phase == self.HOVER) & aligned & (tcp[:, 2] - cube[:, 2] < 0.13))
        self._enter(self.CLOSE, (self._phase == self.DESCEND) & (np.abs(tcp[:, 2] - grasp[:, 2]) < 0.006))
        self._enter(self.HOVER, (self._phase == self.DESCEND) & (offset > 0.03))
        held = (opening < 0.05) & (self._clock >= 4)
        self._enter(self.RAISE, (self._phase == self.CLOSE) & held)
        lost = (self._phase == self.RAISE) & (np.linalg.norm(cube - tcp, axis=1) > 0.045)
        self._enter(self.HOVER, lost)
        # The detour fades as the tool comes near, so the path bows to one side instead of having a corner.
        bow = self._side * self._detour * np.clip((offset - 0.03) / 0.1, 0.0, 1.0)
        hover = grasp + np.stack([0 * bow, bow, bow * 0 + self.hover_m], axis=1)
        raised = np.stack([tcp[:, 0], tcp[:, 1], tcp[:, 2] * 0 + 0.25], axis=1)
        phase = self._phase[:, None]
        target = np.select([phase == self.HOVER, phase == self.RAISE], [hover, raised], default=grasp)
        closing = self._phase >= self.CLOSE
        return self._toward(obs, target, yaw, np.where(closing, CLOSED_M, FRANKA.gripper_max_m))


class PushExpert(ToolExpert):
    """Go behind the cube with closed fingers, push it toward the disc, go round again when it slips aside."""

    ABOVE, DOWN, PUSH = 0, 1, 2
    speed_m = 0.02

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``."""
        state, scene = obs["state"].astype(np.float64), obs["environment_state"].astype(np.float64)
        tcp, cube, goal = state[:, :3], scene[:, :3], scene[:, 12:14]
        way = goal - cube[:, :2]
        direction = way / np.maximum(np.linalg.norm(way, axis=1, keepdims=True), 1e-6)
        side = np.stack([-direction[:, 1], direction[:, 0]], axis=1)
        behind = cube[:, :2] - 0.065 * direction + self._aim[:, :2]
        relative = tcp[:, :2] - cube[:, :2]
        aside = np.abs((relative * side).sum(axis=1))
        ahead = (relative * direction).sum(axis=1)
        near = np.linalg.norm(tcp[:, :2] - behind, axis=1)
        self._enter(self.DOWN, (self._phase == self.ABOVE) & (near < 0.012))
        self._enter(self.PUSH, (self._phase == self.DOWN) & (tcp[:, 2] < 0.032))
        self._enter(self.ABOVE, (self._phase == self.PUSH) & ((aside > 0.03) | (ahead > 0.0)))
        bow = (self._side * self._detour * np.clip((near - 0.03) / 0.1, 0.0, 1.0))[:, None]
        above = np.concatenate([behind + bow * side, np.full((len(tcp), 1), 0.11)], axis=1)
        down = np.concatenate([behind, np.full((len(tcp), 1), 0.025)], axis=1)
        # Aim past the contact face and back toward the line cube → disc, which keeps the cube in front.
        onward = tcp[:, :2] + 0.03 * direction - 0.8 * side * (relative * side).sum(axis=1, keepdims=True)
        push = np.concatenate([onward, np.full((len(tcp), 1), 0.025)], axis=1)
        phase = self._phase[:, None]
        target = np.select([phase == self.ABOVE, phase == self.DOWN], [above, down], default=push)
        # Fingers lie across the direction of travel; half a turn more or less is the same.
        yaw = nearest_turn(np.arctan2(direction[:, 1], direction[:, 0]), np.zeros(len(tcp)), np.pi)
        slow = np.where(self._phase == self.PUSH, 0.6, 1.0)[:, None]
        action = self._toward(obs, target, yaw, np.zeros(len(tcp)))
        action[:, :3] *= slow
        return action


EXPERTS: dict[str, type[ToolExpert]] = {"reach": ReachExpert, "lift": LiftExpert, "push": PushExpert}


def make_expert(task: str, num_envs: int, config: ExpertConfig | None = None, *, seed: int = 0) -> Expert:
    """The expert of a native task; ValueError for a task that has none."""
    if task not in EXPERTS:
        raise ValueError(f"no scripted expert for task {task!r}: known are {', '.join(sorted(EXPERTS))}")
    return EXPERTS[task](num_envs, config, seed=seed)
