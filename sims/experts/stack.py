"""Stack's demonstrator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sims.base import FloatArray
from sims.experts.base import CLOSED_M, OPEN_M, Array, nearest_turn, yaw_of
from sims.experts.careful import CarefulExpert


class StackExpert(CarefulExpert):
    """Take the red cube, raise it, carry it over the green one, lower it, let go and go up.

    Starts again when the cube was lost or fell off. The two ways of grasping are a quarter turn apart.
    """

    HOVER, DESCEND, CLOSE, RAISE, CARRY, LOWER, RELEASE = range(7)
    speed_m = 0.026
    hover_m = 0.09
    carry_m = 0.095
    """Height of the red cube's centre that clears the green cube."""
    on_top_m = 0.045

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``."""
        state, scene = obs["state"].astype(np.float64), obs["environment_state"].astype(np.float64)
        tcp, opening, red, green = state[:, :3], state[:, 9], scene[:, :3], scene[:, 12:15]
        grip = yaw_of(state[:, 3:9])
        along = nearest_turn(yaw_of(scene[:, 3:9]), np.where(self._other_way, -1.0, 0.0), np.pi / 2)
        grasp = red + self._aim
        grasp[:, 2] = red[:, 2] + np.maximum(self._aim[:, 2], -0.006)
        offset = np.linalg.norm((tcp - grasp)[:, :2], axis=1)
        apart = np.linalg.norm((green - red)[:, :2], axis=1)
        self._advance(tcp, opening, red, grasp, offset, np.abs(np.sin(grip - along)))
        self._place(tcp, red, green, apart)
        bow = self._side * self._detour * np.clip((offset - 0.03) / 0.1, 0.0, 1.0)
        hover = grasp + np.stack([0.5 * bow, bow, 0 * bow + self.hover_m], axis=1)
        up = np.stack([tcp[:, 0], tcp[:, 1], tcp[:, 2] + 0.1], axis=1)
        sway = self._side * self._detour * np.clip((apart - 0.06) / 0.2, 0.0, 1.0)
        over = tcp[:, :2] + (green - red)[:, :2]
        carry = np.stack([over[:, 0] + sway, over[:, 1], tcp[:, 2] + self.carry_m - red[:, 2]], axis=1)
        lower = np.stack([over[:, 0], over[:, 1], tcp[:, 2] - 0.009 / self._hurry], axis=1)
        away = np.where((opening > 0.055)[:, None], up, tcp)
        phase = self._phase[:, None]
        target = np.select(
            [phase == self.HOVER, phase == self.RAISE, phase == self.CARRY, phase == self.LOWER, phase == self.RELEASE],
            [hover, up, carry, lower, away],
            default=grasp,
        )
        yaw = np.where(self._phase < self.RAISE, along, grip)
        careful = np.where(self._phase <= self.CLOSE, offset < 0.05, apart < 0.05)
        opened = np.where((self._phase >= self.CLOSE) & (self._phase < self.RELEASE), CLOSED_M, OPEN_M)
        return self._approach(state, target, yaw, opened, careful)

    def _advance(self, tcp: Array, opening: Array, red: Array, grasp: Array, offset: Array, misturned: Array) -> None:
        """The phases up to a closed grip."""
        high = tcp[:, 2] - grasp[:, 2]
        aligned = (offset < 0.01 + self._slack_m) & (misturned < 0.15) & (high < self.hover_m + 0.03)
        self._enter(self.DESCEND, (self._phase == self.HOVER) & aligned)
        low = (np.abs(high) < 0.006 + 0.5 * self._slack_m) & (offset < 0.008 + self._slack_m)
        self._enter(self.CLOSE, (self._phase == self.DESCEND) & low)
        self._enter(self.HOVER, (self._phase == self.DESCEND) & (offset > 0.03))
        self._enter(self.RAISE, (self._phase == self.CLOSE) & (opening < 0.046) & (self._clock >= 3))
        self._enter(self.CARRY, (self._phase == self.RAISE) & (red[:, 2] > 0.075))

    def _place(self, tcp: Array, red: Array, green: Array, apart: Array) -> None:
        """The phases with the cube in hand, and back to the first without it."""
        height = red[:, 2] - green[:, 2] - self.on_top_m
        there = (apart < 0.006 + self._slack_m) & (red[:, 2] < self.carry_m + 0.02)
        self._enter(self.LOWER, (self._phase == self.CARRY) & there)
        self._enter(self.CARRY, (self._phase == self.LOWER) & (apart > 0.016) & (height > 0.004))
        landed = (height < 0.002 + 0.3 * self._slack_m) | (self._clock > 25)
        self._enter(self.RELEASE, (self._phase == self.LOWER) & landed)
        lost = (self._phase >= self.RAISE) & (self._phase < self.RELEASE)
        lost &= np.linalg.norm(red - tcp, axis=1) > 0.045
        self._enter(self.HOVER, lost | ((self._phase == self.RELEASE) & (self._clock > 10)))
