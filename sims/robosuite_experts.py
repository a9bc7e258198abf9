"""Scripted demonstrators for robosuite's tasks, with the same knob of human imperfection as those of sims/experts.py.

They read observation entries only, in either layout of ``RobosuiteVec``, and write its actions: the tool's wanted
motion as a fraction of 0.05 m and 0.5 rad, and the gripper (-1 open, 1 closed).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray
from sims.experts import ExpertConfig
from sims.experts.base import Habits
from sims.robosuite_control import TRANSLATION_M
from sims.robosuite_tasks import find_task

Array = NDArray[np.float64]

OPEN, CLOSED = -1.0, 1.0
GAIN_PER_M, GAIN_PER_RAD = 25.0, 4.0
UP = np.array([0.0, 0.0, 1.0])
HOVER, DESCEND, CLOSE, RAISE, CARRY, LOWER, RELEASE = range(7)


def turned(quaternion: Array) -> Array:
    """Rotation matrices [E, 3, 3] of quaternions [E, 4] in robosuite's order x, y, z, w."""
    x, y, z, w = quaternion.T
    rows = [
        *(1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)),
        *(2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)),
        *(2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)),
    ]
    return np.stack(rows, axis=1).reshape(-1, 3, 3)


def heading(vectors: Array) -> Array:
    """Direction [E] (rad) of [E, 3] on the table plane."""
    return np.arctan2(vectors[:, 1], vectors[:, 0])


def nearest(angle: Array, period: float) -> Array:
    """The angle [E] modulo ``period`` that lies nearest to zero."""
    return angle - period * np.round(angle / period)


class PickExpert(Habits):
    """Hover, turn, descend, close, raise, carry, lower, let go; start again when the object was lost.

    Subclasses say where the object is held, where it goes, and when it is there. An object's pose is its entry's first
    seven numbers.
    """

    hover_m: ClassVar[float] = 0.08
    carry_height_m: ClassVar[float] = 1.0
    """Height of the tool in the world while it carries; tables are at 0.8 m."""
    lost_m: ClassVar[float] = 0.05
    close_steps: ClassVar[int] = 8

    noise_unit_m: ClassVar[float] = TRANSLATION_M

    def __init__(self, num_envs: int, config: ExpertConfig | None = None, *, seed: int = 0) -> None:
        super().__init__(num_envs, config, seed=seed)
        self._way = np.zeros(num_envs, dtype=np.int64)
        self.place = np.zeros((num_envs, 3))

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """Observation entries [E, D] -> action [E, 7]."""
        self._read(obs)
        phase, tool, hold = self._phase, self.tool, self.hold()
        hold = hold + self._aim * (1.0, 1.0, 0.0) + UP * np.clip(self._aim[:, 2:], -0.004, 0.008)
        offset = np.linalg.norm((tool - hold)[:, :2], axis=1)
        turn = self.grasp_turn()
        height = tool[:, 2] - hold[:, 2]
        self._enter(
            DESCEND, (phase == HOVER) & (offset < 0.008) & (np.abs(turn) < 0.1) & (height < self.hover_m + 0.04)
        )
        self._enter(CLOSE, (phase == DESCEND) & (np.abs(height) < 0.006))
        self._enter(HOVER, (phase == DESCEND) & (offset > 0.03))
        self._enter(RAISE, (phase == CLOSE) & (self._clock >= self.close_steps))
        self._enter(CARRY, (phase == RAISE) & (tool[:, 2] > self.carry_height_m - 0.03))
        lost = np.linalg.norm(self.hold() - tool, axis=1) > self.lost_m
        self._enter(HOVER, (phase >= RAISE) & (phase <= LOWER) & lost)
        target, carried_turn = self.carry()
        self._enter(LOWER, (phase == CARRY) & self.above(target, carried_turn))
        self._enter(RELEASE, (phase == LOWER) & self.arrived())
        self._enter(HOVER, (phase == RELEASE) & (self._clock > 25))
        return self._move(
            hold, target, offset, np.where(phase < RAISE, turn, np.where(phase > RAISE, carried_turn, 0.0))
        )

    def _read(self, obs: Mapping[str, FloatArray]) -> None:
        if "state" in obs:
            state, scene = (np.asarray(obs[key], dtype=np.float64) for key in ("state", "environment_state"))
        else:
            keys = ("robot0_eef_pos", "robot0_eef_quat", "robot0_gripper_qpos")
            state = np.concatenate([obs[key].astype(np.float64) for key in keys], axis=1)
            scene = np.asarray(obs["object"], dtype=np.float64)
        self.scene, self.tool = scene, state[:, :3]
        self.hand, self.axes = turned(state[:, 3:7]), turned(scene[:, 3:7])
        self._travel = np.linalg.norm(scene[:, :3] - self.place, axis=1)  # since the step before
        self.place = scene[:, :3]
        self.fingers_yaw = heading(self.hand[:, :, 1])  # they close along the hand's y axis

    # ------------------------------------------------------------------ what a task says

    def hold(self) -> Array:
        """[E, 3] where the tool grips the object."""
        return self.place

    def grasp_turn(self) -> Array:
        """[E] (rad) how far the hand must turn before it grips."""
        return nearest(heading(self.axes[:, :, 1]) - self.fingers_yaw + np.where(self._other_way, np.pi / 2, 0), np.pi)

    def carry(self) -> tuple[Array, Array]:
        """[E, 3] where the tool carries the object at first and [E] (rad) how far it still has to turn."""
        return self.tool + 0.05 * UP, np.zeros(len(self.tool))

    def above(self, target: Array, turn: Array) -> BoolArray:
        """[E] whether the object can be lowered: ``target`` and ``turn`` are those of ``carry``."""
        return (np.linalg.norm((target - self.tool)[:, :2], axis=1) < 0.02) & (np.abs(turn) < 0.1)

    def arrived(self) -> BoolArray:
        """[E] whether the object can be let go."""
        return np.zeros(len(self.tool), dtype=bool)

    # ------------------------------------------------------------------ motion

    def _move(self, hold: Array, target: Array, offset: Array, turn: Array) -> Array:
        """The action toward what each environment's phase asks for."""
        phase, tool = self._phase[:, None], self.tool
        # The detour fades as the tool comes near, so the path bows to one side instead of having a corner.
        bow = self._side * self._detour * np.clip((offset - 0.03) / 0.1, 0.0, 1.0)
        hover = hold + np.stack([0 * bow, bow, 0 * bow + self.hover_m], axis=1)
        raised = np.concatenate([tool[:, :2], np.full((len(tool), 1), self.carry_height_m)], axis=1)
        lowered = target - 0.06 * UP
        leaving = tool + 0.1 * UP
        leaving[self._clock < 4] = tool[self._clock < 4]
        wanted = np.select(
            [phase == HOVER, phase == RAISE, phase == CARRY, phase == LOWER, phase == RELEASE],
            [hover, raised, target, lowered, leaving],
            default=hold,
        )
        step = GAIN_PER_M * (wanted - tool)
        length = np.linalg.norm(step, axis=1, keepdims=True)
        limit = np.where(self._phase == LOWER, 0.5, 1.0) * self._speed
        step *= np.minimum(1.0, limit[:, None] / np.maximum(length, 1e-9))
        upright = np.cross(self.hand[:, :, 2], -UP)
        spin = np.concatenate([upright[:, :2], turn[:, None]], axis=1)
        spin = np.clip(GAIN_PER_RAD * spin, -0.8, 0.8).astype(np.float64)
        step, spin = self._imperfect(step, spin)
        self._clock += 1
        closing = (self._phase >= CLOSE) & (self._phase < RELEASE)
        grip = np.where(closing, CLOSED, OPEN)[:, None]
        return np.clip(np.concatenate([step, spin, grip], axis=1), -1.0, 1.0)


class LiftExpert(PickExpert):
    """Grip the cube and raise it."""

    def grasp_turn(self) -> Array:
        """Any of the cube's four sides."""
        away = np.where(self._other_way, np.pi / 4, 0.0)
        return nearest(heading(self.axes[:, :, 1]) - self.fingers_yaw - away, np.pi / 2) + away


class CanExpert(PickExpert):
    """Carry the can into its bin, the far right one, and let go."""

    bin_m: ClassVar[tuple[float, float]] = (0.15, 0.35)
    """Short of the bin's middle, which the arm reaches only with a stretched elbow."""
    carry_height_m: ClassVar[float] = 1.03
    hover_m: ClassVar[float] = 0.1
    lost_m: ClassVar[float] = 0.07

    def hold(self) -> Array:
        """Above the can's middle."""
        return self.place + 0.015 * UP

    def grasp_turn(self) -> Array:
        """A can is round: grip it as the hand comes, or turned a quarter."""
        return nearest(np.where(self._other_way, 0.0, np.pi / 2) - self.fingers_yaw, np.pi)

    def carry(self) -> tuple[Array, Array]:
        """See ``PickExpert.carry``."""
        height = np.where(self._phase == LOWER, 0.9, self.carry_height_m)
        target = np.stack([0 * height + self.bin_m[0], 0 * height + self.bin_m[1], height], axis=1)
        return target, np.zeros(len(target))

    def arrived(self) -> BoolArray:
        """See ``PickExpert.arrived``."""
        return self.place[:, 2] < 0.895


class StackExpert(PickExpert):
    """Put cube A on cube B: its pose is the entry's numbers 7 to 14."""

    carry_height_m: ClassVar[float] = 0.95

    def grasp_turn(self) -> Array:
        """The pair of sides that keeps the fingers clear of the other cube."""
        turn = nearest(heading(self.axes[:, :, 1]) - self.fingers_yaw, np.pi / 2)
        between = self.scene[:, 7:10] - self.place
        toward = np.abs(np.cos(self.fingers_yaw + turn - heading(between)))
        blocked = (toward > 0.75) & (np.linalg.norm(between[:, :2], axis=1) < 0.13)
        return np.where(blocked, turn - np.pi / 2 * np.where(turn > 0, 1.0, -1.0), turn)

    def carry(self) -> tuple[Array, Array]:
        """See ``PickExpert.carry``."""
        goal = self.scene[:, 7:10] + 0.1 * UP
        return self.tool + goal - self.place, np.zeros(len(goal))

    def arrived(self) -> BoolArray:
        """See ``PickExpert.arrived``."""
        return self.place[:, 2] - self.scene[:, 9] < 0.048


class SquareExpert(PickExpert):
    """Grip the nut by its handle, turn its hole to the square peg and lower it over."""

    handle_m: ClassVar[float] = 0.054
    home_yaw_rad: ClassVar[float] = -np.pi / 2
    """Where the fingers close along when an episode begins."""
    peg_m: ClassVar[tuple[float, float]] = (0.23, 0.1)
    carry_height_m: ClassVar[float] = 1.02
    lost_m: ClassVar[float] = 0.05

    def hold(self) -> Array:
        """The handle, along the nut's x axis."""
        return self.place + self.handle_m * self.axes[:, :, 0]

    def grasp_turn(self) -> Array:
        """The fingers close across the handle: along the nut's y axis."""
        return nearest(heading(self.axes[:, :, 1]) - self.fingers_yaw, np.pi)

    def carry(self) -> tuple[Array, Array]:
        """Any of four ways fits. The one is taken that turns the wrist least, and never the handle beyond the peg,
        where the arm would have to stretch.
        """
        ways = np.array([-0.5, 0.5, 1.0])[:, None] * np.pi
        turns = nearest(ways - heading(self.axes[:, :, 0]), 2 * np.pi)  # [3, E]
        wrist = nearest(self.fingers_yaw - self.home_yaw_rad, 2 * np.pi) + turns
        # Decided once, at the grasp: between two ways that cost the same, noise would have the last word each step.
        self._way = np.where(self._phase <= CLOSE, np.argmin(np.abs(wrist), axis=0), self._way)
        turn = turns[self._way, np.arange(len(self._way))]
        height = np.where(self._phase == LOWER, 0.9, 0.985)
        goal = np.stack([0 * height + self.peg_m[0], 0 * height + self.peg_m[1], height], axis=1)
        return self.tool + goal - self.place, turn

    def above(self, target: Array, turn: Array) -> BoolArray:
        """See ``PickExpert.above``."""
        still = self._travel < 0.0015
        return still & (np.linalg.norm((target - self.tool)[:, :2], axis=1) < 0.003) & (np.abs(turn) < 0.04)


EXPERTS: dict[str, type[PickExpert]] = {
    "Lift": LiftExpert,
    "PickPlaceCan": CanExpert,
    "NutAssemblySquare": SquareExpert,
    "Stack": StackExpert,
}


def make_robosuite_expert(task: str, num_envs: int, config: ExpertConfig | None = None, *, seed: int = 0) -> PickExpert:
    """The expert of a robosuite task; ValueError for an unknown task or one that has none."""
    name = find_task(task).env_name
    if name not in EXPERTS:
        raise ValueError(f"no scripted expert for robosuite's {name}: known are {', '.join(EXPERTS)}")
    return EXPERTS[name](num_envs, config, seed=seed)
