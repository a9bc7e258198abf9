"""Push-T's demonstrator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from sims.base import BoolArray, FloatArray
from sims.experts.base import Array, ExpertConfig, yaw_of
from sims.experts.careful import CarefulExpert

CONTACTS = np.array(
    [(x, 0.0407, 0, -1) for x in (-0.052, -0.035, -0.018, 0.0, 0.018, 0.035, 0.052)]
    + [(x, 0.0107, 0, 1) for x in (-0.052, -0.040, 0.040, 0.052)]
    + [(side * 0.06, 0.0257, -side, 0) for side in (-1, 1)]
    + [(side * 0.015, y, -side, 0) for side in (-1, 1) for y in (-0.072, -0.055, -0.038, -0.022)]
    + [(0.0, -0.0793, 0, 1)]
)
"""[C, 4] where the block can be pushed, in its own frame: point (m), inward normal. Fingers need room in corners."""
SPIN_M = 0.045
"""Turning against sliding under friction: torque over force at the limit (the ellipsoid of Howe and Cutkosky 1996)."""
RADIAN_M = 0.12
"""Distance that counts as much as a radian, about the ratio of the task's tolerances."""
FINGER_M = 0.016
"""Half the width of the closed fingers, between that of their faces and corners."""


class Plan(NamedTuple):
    """What pushing at each contact would do. gain [E, C] m²: how much squared error the best push removes; length
    [E, C] m: that push.
    """

    gain: Array
    length: Array


def plan(away: Array, turn: Array) -> Plan:
    """Away [E, 2] m in the block's frame and turn [E] rad to the mark -> quasi-static pushes along each normal."""
    point, normal = CONTACTS[:, :2], CONTACTS[:, 2:]
    torque = point[:, 0] * normal[:, 1] - point[:, 1] * normal[:, 0]
    share = 1 / (1 + (torque / SPIN_M) ** 2)  # of the fingers' way that becomes sliding
    slide, spin = share[:, None] * normal, share * torque / SPIN_M**2
    along = away @ slide.T + RADIAN_M**2 * turn[:, None] * spin
    size = share**2 + (RADIAN_M * spin) ** 2
    return Plan(np.where(along > 0, along**2 / size, 0.0), np.maximum(along, 0.0) / size)


class PushTExpert(CarefulExpert):
    """Choose where a straight push helps most, go there, push with closed fingers until it helps no more, choose again.

    The two ways: the other one prefers another contact among those that are nearly as good.
    """

    CHOOSE, ABOVE, DOWN, PUSH = range(4)
    speed_m = 0.028
    gain = 0.3
    above_m = 0.065
    low_m = 0.020
    room_m = 0.014
    """Between fingers and block before a push."""

    def __init__(self, num_envs: int, config: ExpertConfig | None = None, *, seed: int = 0) -> None:
        self._contact = np.zeros(num_envs, dtype=np.int64)
        super().__init__(num_envs, config, seed=seed)

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``."""
        state, scene = obs["state"].astype(np.float64), obs["environment_state"].astype(np.float64)
        tcp, block, rows = state[:, :3], scene[:, :2], np.arange(len(state))
        yaw = yaw_of(scene[:, 3:9])
        turn = np.stack([np.cos(yaw), -np.sin(yaw), np.sin(yaw), np.cos(yaw)], axis=1).reshape(-1, 2, 2)
        away = np.einsum("eji,ej->ei", turn, scene[:, 16:18])
        planned = plan(away, np.arctan2(scene[:, 19], scene[:, 18]))
        self._choose(planned, turn, block, tcp)
        contact = CONTACTS[self._contact]
        point = block + np.einsum("eij,ej->ei", turn, contact[:, :2])
        normal = np.einsum("eij,ej->ei", turn, contact[:, 2:])
        behind = point - (FINGER_M + self.room_m) * normal + self._aim[:, :2]
        near = np.linalg.norm(tcp[:, :2] - behind, axis=1)
        left = planned.length[rows, self._contact]
        self._advance(tcp, point, near, left)
        # Fingers travel with the contact, so they stay on the spot of the block that was chosen.
        ahead = np.clip(left, 0.004, 0.03)[:, None] - FINGER_M + 0.010
        target_xy = np.where((self._phase == self.PUSH)[:, None], point + ahead * normal, behind)
        far = near > 0.04
        height = np.select(
            [self._phase >= self.DOWN, far & (tcp[:, 2] < self.above_m - 0.02)],
            [np.full(len(tcp), self.low_m), np.full(len(tcp), self.above_m + 0.03)],
            default=np.full(len(tcp), self.above_m),
        )
        # First up, then across: fingers that leave sideways drag the block along.
        leaving = (self._phase == self.ABOVE) & (tcp[:, 2] < self.above_m - 0.022)
        target_xy = np.where(leaving[:, None], tcp[:, :2], target_xy)
        bow = self._side * 0.5 * self._detour * np.clip((near - 0.03) / 0.1, 0.0, 1.0)
        target_xy = target_xy + np.where((self._phase == self.ABOVE) & ~leaving, bow, 0.0)[:, None] * (0.3, 1.0)
        target = np.concatenate([target_xy, height[:, None]], axis=1)
        closed = np.zeros(len(tcp))
        return self._approach(state, target, closed, closed, self._phase >= self.DOWN)

    def _choose(self, planned: Plan, turn: Array, block: Array, tcp: Array) -> None:
        """A contact for those who have none."""
        where = self._phase == self.CHOOSE
        point = block[:, None] + np.einsum("eij,cj->eci", turn, CONTACTS[:, :2])
        walk = np.linalg.norm(point - tcp[:, None, :2], axis=2)
        score = planned.gain * (1 - 0.5 * np.minimum(walk, 0.3))
        order = np.argsort(-score, axis=1)
        good_second = np.take_along_axis(score, order[:, 1:2], 1)[:, 0] > 0.8 * score.max(axis=1)
        chosen = np.where(self._other_way & good_second, order[:, 1], order[:, 0])
        self._contact = np.where(where, chosen, self._contact)
        self._enter(self.ABOVE, where)

    def _advance(self, tcp: Array, point: Array, near: Array, left: Array) -> None:
        """From phase to phase, and to another contact when this push helps no more or the fingers slipped off."""
        arrived = (near < 0.008 + self._slack_m) & (tcp[:, 2] < self.above_m + 0.02)
        self._enter(self.DOWN, (self._phase == self.ABOVE) & arrived)
        self._enter(self.PUSH, (self._phase == self.DOWN) & (tcp[:, 2] < self.low_m + 0.008))
        done: BoolArray = (left < 0.003) | (self._clock > 45)
        slipped = np.linalg.norm(tcp[:, :2] - point, axis=1) > FINGER_M + self.room_m + 0.025
        self._enter(self.CHOOSE, (self._phase == self.PUSH) & (done | slipped))
        self._enter(self.CHOOSE, (self._phase < self.PUSH) & (self._clock > 45))
