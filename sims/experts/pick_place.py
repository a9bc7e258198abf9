"""Pick-and-place's demonstrator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sims.base import FloatArray
from sims.experts.base import CLOSED_M, OPEN_M, Array
from sims.experts.careful import CarefulExpert


class PickPlaceExpert(CarefulExpert):
    """Hover, descend, close, raise, carry over the bin, let go; start again when the can was lost on the way.

    The can is round: the two ways of grasping are a quarter turn apart.
    """

    HOVER, DESCEND, CLOSE, RAISE, CARRY, RELEASE = range(6)
    speed_m = 0.026
    hover_m = 0.085
    """Above the grasp: the open fingers clear the can's top."""
    carry_m = 0.175
    """Height of the tool whose can clears the rim."""
    release_m = 0.135

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``."""
        state, scene = obs["state"].astype(np.float64), obs["environment_state"].astype(np.float64)
        tcp, opening, can, place = state[:, :3], state[:, 9], scene[:, :3], scene[:, 12:14]
        lying = np.abs(scene[:, 5]) + np.abs(scene[:, 8]) > 0.3
        yaw = np.where(self._other_way, -0.9, 0.2)
        # A fallen can is taken across its axis, wherever that points, and at its middle.
        axis = np.cross(scene[:, 3:6], scene[:, 6:9])
        across = np.arctan2(axis[:, 1], axis[:, 0])
        yaw = np.where(lying, across - np.pi * np.round(across / np.pi), yaw)
        above = np.where(lying, 0.0, 0.022)
        grasp = can + self._aim
        grasp[:, 2] = np.maximum(can[:, 2] + above + self._aim[:, 2], 0.016)
        offset = np.linalg.norm((tcp - grasp)[:, :2], axis=1)
        self._advance(tcp, opening, can, grasp, offset, place)
        bow = self._side * self._detour * np.clip((offset - 0.03) / 0.1, 0.0, 1.0)
        hover = grasp + np.stack([0.5 * bow, bow, 0 * bow + self.hover_m], axis=1)
        raised = np.stack([tcp[:, 0], tcp[:, 1], 0 * bow + self.carry_m + 0.03], axis=1)
        far = np.linalg.norm(place - can[:, :2], axis=1)
        sway = self._side * self._detour * np.clip((far - 0.06) / 0.2, 0.0, 1.0)
        height = np.where(far < 0.06, self.release_m, self.carry_m + 0.015)
        carry = np.stack([*(tcp[:, :2] + place - can[:, :2] + np.stack([sway, 0 * sway], 1)).T, height], axis=1)
        away = np.stack([tcp[:, 0], tcp[:, 1], 0 * bow + self.carry_m + 0.03], axis=1)
        phase = self._phase[:, None]
        target = np.select(
            [phase == self.HOVER, phase == self.RAISE, phase == self.CARRY, phase == self.RELEASE],
            [hover, raised, carry, away],
            default=grasp,
        )
        closing = (self._phase >= self.CLOSE) & (self._phase < self.RELEASE)
        careful = (self._phase <= self.RAISE) & (offset < 0.05)
        return self._approach(state, target, yaw, np.where(closing, CLOSED_M, OPEN_M), careful)

    def _advance(self, tcp: Array, opening: Array, can: Array, grasp: Array, offset: Array, place: Array) -> None:
        """From phase to phase, and back to the first where the can isn't between the fingers."""
        low = tcp[:, 2] - grasp[:, 2] < self.hover_m + 0.03
        self._enter(self.DESCEND, (self._phase == self.HOVER) & (offset < 0.01 + self._slack_m) & low)
        self._enter(
            self.CLOSE,
            (self._phase == self.DESCEND)
            & (np.abs(tcp[:, 2] - grasp[:, 2]) < 0.008 + self._slack_m)
            & (offset < 0.008),
        )
        self._enter(self.HOVER, (self._phase == self.DESCEND) & (offset > 0.03))
        self._enter(self.RAISE, (self._phase == self.CLOSE) & (opening < 0.056) & (self._clock >= 3))
        self._enter(self.CARRY, (self._phase == self.RAISE) & (tcp[:, 2] > self.carry_m - 0.06))
        over = np.abs(place - can[:, :2]).max(axis=1) < 0.045
        self._enter(self.RELEASE, (self._phase == self.CARRY) & over & (tcp[:, 2] < self.carry_m + 0.005))
        carrying = (self._phase == self.RAISE) | (self._phase == self.CARRY)
        lost = carrying & (np.linalg.norm(can - tcp, axis=1) > 0.06)
        self._enter(self.HOVER, lost | ((self._phase == self.RELEASE) & (self._clock >= 12)))
