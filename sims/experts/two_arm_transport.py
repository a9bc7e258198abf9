"""The demonstrator of the handover: two hands, each with its own phases, that wait for one another."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray
from sims.experts.base import CLOSED_M, OPEN_M, Array, ExpertConfig, ToolExpert, nearest_turn, yaw_of

GRASP_M = 0.075
"""Where each hand takes the bar, from its middle: the left one nearer to the robots, the right one farther."""
MEETING_M = np.array([0.50, 0.0, 0.24])
UP = np.array([0.0, 0.0, 1.0])


class Hand(ToolExpert):
    """One hand: its phase, habits and imperfections."""

    def move(self, state: Array, target: Array, yaw_rad: Array, opening: Array) -> Array:
        """Action [E, 7] toward ``target``."""
        return self._toward(state, target, yaw_rad, opening)

    @property
    def phase(self) -> NDArray[np.int64]:
        """[E]."""
        return self._phase

    @property
    def clock(self) -> NDArray[np.int64]:
        """[E] control steps spent in the phase."""
        return self._clock

    @property
    def aim(self) -> Array:
        """[E, 3] where it errs (m)."""
        return self._aim

    def enter(self, phase: int, where: BoolArray) -> None:
        """Begin ``phase`` where [E]."""
        self._enter(phase, where)


class TwoArmTransportExpert:
    """Left: hover, descend, close, carry to the meeting point, let go, leave. Right: wait, take, carry, lay down."""

    HOVER, DESCEND, CLOSE, CARRY, RELEASE, LEAVE = range(6)
    WAIT, TAKE, GRIP, BRING, LOWER, OPEN = range(6)

    def __init__(self, num_envs: int, config: ExpertConfig | None = None, *, seed: int = 0) -> None:
        self._left, self._right = Hand(num_envs, config, seed=2 * seed), Hand(num_envs, config, seed=2 * seed + 1)

    def reset(self, mask: BoolArray) -> None:
        """See ``Expert.reset``."""
        self._left.reset(mask)
        self._right.reset(mask)

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``; actions [E, 14], the left arm's first."""
        state, scene = obs["state"].astype(np.float64), obs["environment_state"].astype(np.float64)
        left, right = np.split(state, 2, axis=1)
        bar, axes, goal = scene[:, :3], scene[:, 3:9], scene[:, 15:17]
        yaw = nearest_turn(yaw_of(axes), np.zeros(len(bar)), np.pi)
        # The bar's long axis, pointing away from the robots whichever end it lies with.
        along = axes[:, :3] * np.sign(axes[:, :1])
        self._advance(left, right, bar, along, yaw, goal)
        return np.concatenate(
            [self._left_action(left, bar, along, yaw), self._right_action(right, bar, along, goal)], 1
        )

    def _advance(self, left: Array, right: Array, bar: Array, along: Array, yaw: Array, goal: Array) -> None:
        near, far = self._left, self._right
        grasp = bar - GRASP_M * along + near.aim * (1, 1, 0)
        flat = np.linalg.norm((left[:, :3] - grasp)[:, :2], axis=1)
        turned = np.abs(np.sin(yaw_of(left[:, 3:9]) - yaw)) < 0.1
        held = np.linalg.norm(left[:, :3] - grasp, axis=1) < 0.04
        near.enter(self.DESCEND, (near.phase == self.HOVER) & (flat < 0.015) & turned & (left[:, 2] - bar[:, 2] < 0.12))
        near.enter(self.CLOSE, (near.phase == self.DESCEND) & (np.abs(left[:, 2] - grasp[:, 2]) < 0.007))
        near.enter(self.HOVER, (near.phase == self.DESCEND) & (flat > 0.03))
        near.enter(self.CARRY, (near.phase == self.CLOSE) & (left[:, 9] < 0.05) & (near.clock >= 4))
        near.enter(self.HOVER, (near.phase == self.CARRY) & ~held)
        met = np.linalg.norm(bar - MEETING_M, axis=1) < 0.04
        take = bar + GRASP_M * along
        there = np.linalg.norm(right[:, :3] - take, axis=1)
        far.enter(self.TAKE, (far.phase == self.WAIT) & (near.phase == self.CARRY) & met)
        far.enter(self.GRIP, (far.phase == self.TAKE) & (there < 0.02))
        far.enter(self.WAIT, (far.phase == self.TAKE) & (near.phase != self.CARRY))
        firm = (far.phase == self.GRIP) & (right[:, 9] < 0.05) & (far.clock >= 5)
        near.enter(self.RELEASE, (near.phase == self.CARRY) & firm)
        near.enter(self.LEAVE, (near.phase == self.RELEASE) & (near.clock >= 4))
        far.enter(self.BRING, (far.phase == self.GRIP) & (near.phase == self.LEAVE) & (near.clock >= 5))
        over = np.linalg.norm(bar[:, :2] - goal, axis=1) < 0.03
        far.enter(self.LOWER, (far.phase == self.BRING) & over)
        far.enter(self.OPEN, (far.phase == self.LOWER) & ((bar[:, 2] < 0.035) | (far.clock > 25)))
        lost = (far.phase == self.BRING) & (there > 0.05)
        far.enter(self.WAIT, lost)
        near.enter(self.HOVER, lost)

    def _left_action(self, state: Array, bar: Array, along: Array, yaw: Array) -> Array:
        phase, tcp = self._left.phase[:, None], state[:, :3]
        grasp = bar - GRASP_M * along + self._left.aim * (1, 1, 0)
        hover = grasp + 0.09 * UP
        # The hand leads: where it must be for the bar to lie at the meeting point along x.
        carry = np.tile(MEETING_M, (len(bar), 1))
        carry[:, 0] -= GRASP_M
        low = tcp[:, 2] < 0.12
        carry[:, :2] = np.where(low[:, None], tcp[:, :2], carry[:, :2])  # straight up first
        leave = np.tile((0.40, 0.35, 0.35), (len(bar), 1))
        leave[:, :2] = np.where((self._left.clock < 5)[:, None], tcp[:, :2], leave[:, :2])
        target = np.select(
            [phase == self.HOVER, phase == self.CARRY, phase == self.RELEASE, phase == self.LEAVE],
            [hover, carry, tcp, leave],
            default=grasp,
        )
        turn = np.where(self._left.phase >= self.CARRY, 0.0, yaw)
        closed = (self._left.phase >= self.CLOSE) & (self._left.phase <= self.CARRY)
        return self._left.move(state, target, turn, np.where(closed, CLOSED_M, OPEN_M))

    def _right_action(self, state: Array, bar: Array, along: Array, goal: Array) -> Array:
        phase, tcp = self._right.phase[:, None], state[:, :3]
        take = bar + GRASP_M * along
        ready = np.tile(MEETING_M + 0.10 * UP, (len(bar), 1))
        ready[:, 0] += GRASP_M
        aside = np.linalg.norm((tcp - take)[:, :2], axis=1, keepdims=True)
        above = take + UP * np.clip(4 * aside - 0.02, 0.0, 0.1)
        bring = np.stack(
            [tcp[:, 0] + goal[:, 0] - bar[:, 0], tcp[:, 1] + goal[:, 1] - bar[:, 1], 0 * tcp[:, 2]], axis=1
        )
        bring[:, 2] = 0.22
        lower = bring * (1, 1, 0) + tcp * (0, 0, 1) - 0.02 * UP
        target = np.select(
            [phase == self.WAIT, phase == self.TAKE, phase == self.BRING, phase == self.LOWER],
            [ready, above, bring, lower],
            default=tcp,
        )
        closed = (self._right.phase >= self.GRIP) & (self._right.phase <= self.LOWER)
        return self._right.move(state, target, np.zeros(len(tcp)), np.where(closed, CLOSED_M, OPEN_M))
