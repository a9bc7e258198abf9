"""Peg insertion's demonstrator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sims.base import FloatArray
from sims.experts.base import CLOSED_M, OPEN_M, Array, nearest_turn, yaw_of
from sims.experts.careful import CarefulExpert


class PegInsertionExpert(CarefulExpert):
    """Hover above the handle, take it, raise the nut, carry it over the peg while turning it square, lower it slowly,
    and let it fall once the peg is in the hole.

    Lifts again when the nut misses the peg, and starts again when it was lost or stays hanging. The two ways differ in
    which end of the handle's axis the tool's x axis points to, and so in how far the wrist turns.
    """

    HOVER, DESCEND, CLOSE, RAISE, CARRY, LOWER, RELEASE = range(7)
    speed_m = 0.026
    hover_m = 0.07
    carry_m = 0.095
    """Height of the nut that clears the peg."""
    slowly_m = 0.008
    """Way down per control step over the peg: time for the last of the sideways motion to end."""
    engaged_m = 0.050
    """Height of the nut at which the peg is 2 cm deep in the hole."""

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``."""
        state, scene = obs["state"].astype(np.float64), obs["environment_state"].astype(np.float64)
        tcp, opening, nut = state[:, :3], state[:, 9], scene[:, :3]
        handle, peg = tcp + scene[:, 12:15], scene[:, 15:17]
        turned, grip = yaw_of(scene[:, 3:9]), yaw_of(state[:, 3:9])
        grasp = handle + self._aim
        grasp[:, 2] = np.maximum(handle[:, 2] + 0.003 + np.maximum(self._aim[:, 2], -0.003), 0.014)
        offset = np.linalg.norm((tcp - grasp)[:, :2], axis=1)
        along = nearest_turn(turned, np.where(self._other_way, -0.9, 0.2), np.pi)
        crooked = nearest_turn(turned, np.zeros(len(tcp)), np.pi / 2)
        apart = np.linalg.norm(peg - nut[:, :2], axis=1)
        self._advance(tcp, opening, grasp, offset, np.abs(np.sin(grip - along)))
        self._place(tcp, nut, handle, apart, np.abs(crooked))
        yaw = np.where(self._phase < self.CARRY, along, grip - crooked)
        bow = self._side * self._detour * np.clip((offset - 0.03) / 0.1, 0.0, 1.0)
        hover = grasp + np.stack([0.5 * bow, bow, 0 * bow + self.hover_m], axis=1)
        up = np.stack([tcp[:, 0], tcp[:, 1], tcp[:, 2] + 0.1], axis=1)
        sway = self._side * self._detour * np.clip((apart - 0.06) / 0.2, 0.0, 1.0)
        over = tcp[:, :2] + peg - nut[:, :2]
        carry = np.stack([over[:, 0] + sway, over[:, 1], tcp[:, 2] + self.carry_m - nut[:, 2]], axis=1)
        down = tcp[:, 2] - self.slowly_m / self._hurry
        lower = np.stack([over[:, 0], over[:, 1], down], axis=1)
        phase = self._phase[:, None]
        target = np.select(
            [phase == self.HOVER, phase == self.RAISE, phase == self.CARRY, phase == self.LOWER, phase == self.RELEASE],
            [hover, up, carry, lower, tcp],
            default=grasp,
        )
        careful = np.where(self._phase <= self.CLOSE, offset < 0.05, apart < 0.05)
        opened = np.where((self._phase >= self.CLOSE) & (self._phase < self.RELEASE), CLOSED_M, OPEN_M)
        return self._approach(state, target, yaw, opened, careful)

    def _advance(self, tcp: Array, opening: Array, grasp: Array, offset: Array, misturned: Array) -> None:
        """The phases up to a closed grip."""
        high = tcp[:, 2] - grasp[:, 2]
        aligned = (offset < 0.01 + self._slack_m) & (misturned < 0.15) & (high < self.hover_m + 0.03)
        self._enter(self.DESCEND, (self._phase == self.HOVER) & aligned)
        low = (np.abs(high) < 0.005 + 0.5 * self._slack_m) & (offset < 0.008 + self._slack_m)
        self._enter(self.CLOSE, (self._phase == self.DESCEND) & low)
        self._enter(self.HOVER, (self._phase == self.DESCEND) & (offset > 0.03))
        self._enter(self.RAISE, (self._phase == self.CLOSE) & (opening < 0.03) & (self._clock >= 3))

    def _place(self, tcp: Array, nut: Array, handle: Array, apart: Array, crooked: Array) -> None:
        """The phases with the nut in hand, and back to the first without it."""
        self._enter(self.CARRY, (self._phase == self.RAISE) & (nut[:, 2] > 0.06))
        square = (apart < 0.004 + 0.5 * self._slack_m) & (crooked < 0.10)
        self._enter(self.LOWER, (self._phase == self.CARRY) & square & (nut[:, 2] < self.carry_m + 0.02))
        missed = (apart > 0.007 + 0.5 * self._slack_m) & (nut[:, 2] > self.engaged_m)
        self._enter(self.CARRY, (self._phase == self.LOWER) & (missed | (self._clock > 20)))
        self._enter(self.RELEASE, (self._phase == self.LOWER) & (apart < 0.007) & (nut[:, 2] < self.engaged_m))
        self._enter(self.HOVER, (self._phase == self.RELEASE) & (self._clock > 10))
        held = (self._phase >= self.RAISE) & (self._phase < self.RELEASE)
        self._enter(self.HOVER, held & (np.linalg.norm(handle - tcp, axis=1) > 0.035))
