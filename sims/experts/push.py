"""Push's demonstrator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sims.base import FloatArray
from sims.experts.base import Array, ToolExpert, nearest_turn


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
        action = self._toward(state, target, yaw, np.zeros(len(tcp)))
        action[:, :3] *= slow
        return action
