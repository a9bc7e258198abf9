"""Lift's demonstrator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sims.base import FloatArray
from sims.experts.base import CLOSED_M, OPEN_M, Array, ToolExpert, nearest_turn, yaw_of


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
        return self._toward(state, target, yaw, np.where(closing, CLOSED_M, OPEN_M))
