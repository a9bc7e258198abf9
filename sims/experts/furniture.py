"""Demonstrators of doors and drawers: take the handle from above, then lead it along its way."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sims.base import FloatArray
from sims.experts.base import CLOSED_M, OPEN_M, Array, ToolExpert, nearest_turn


class HandleExpert(ToolExpert):
    """Hover above the handle, descend round it, close, pull; begin again when the handle slipped out."""

    HOVER, DESCEND, CLOSE, PULL = 0, 1, 2, 3
    hover_m = 0.10

    def _way(self, scene: Array, handle: Array) -> tuple[Array, Array]:
        """Where to lead the handle next [E, 3], and the hand's turn [E] that closes across the pull."""
        raise NotImplementedError

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``."""
        state, scene = obs["state"].astype(np.float64), obs["environment_state"].astype(np.float64)
        tcp, opening, handle = state[:, :3], state[:, 9], scene[:, :3]
        onward, yaw = self._way(scene, handle)
        grasp = handle + self._aim * (0.5, 0.5, 1.0)
        offset = np.linalg.norm((tcp - grasp)[:, :2], axis=1)
        above = tcp[:, 2] - handle[:, 2]
        self._enter(self.DESCEND, (self._phase == self.HOVER) & (offset < 0.010) & (above > 0.05))
        self._enter(self.CLOSE, (self._phase == self.DESCEND) & (np.abs(tcp[:, 2] - grasp[:, 2]) < 0.008))
        self._enter(self.HOVER, (self._phase == self.DESCEND) & (offset > 0.04))
        self._enter(self.PULL, (self._phase == self.CLOSE) & (opening < 0.06) & (self._clock >= 4))
        self._enter(self.HOVER, (self._phase == self.PULL) & (np.linalg.norm(handle - tcp, axis=1) > 0.05))
        bow = self._side * self._detour * np.clip((offset - 0.03) / 0.1, 0.0, 1.0)
        hover = grasp + np.stack([0 * bow, bow, 0 * bow + self.hover_m], axis=1)
        # Beside the handle the tool first rises: it would knock the handle over its way otherwise.
        hover[:, :2] = np.where(((above < 0.06) & (offset > 0.03))[:, None], tcp[:, :2], hover[:, :2])
        phase = self._phase[:, None]
        target = np.select([phase == self.HOVER, phase == self.PULL], [hover, tcp + onward - handle], default=grasp)
        action = self._toward(state, target, yaw, np.where(self._phase >= self.CLOSE, CLOSED_M, OPEN_M))
        action[:, :3] *= np.where(self._phase == self.PULL, 0.7, 1.0)[:, None]
        return action


class DoorExpert(HandleExpert):
    """Leads the handle round the hinge."""

    def _way(self, scene: Array, handle: Array) -> tuple[Array, Array]:
        arm = handle[:, :2] - scene[:, 6:8]
        ahead = 0.12
        cos, sin = np.cos(-ahead), np.sin(-ahead)
        turned = np.stack([cos * arm[:, 0] - sin * arm[:, 1], sin * arm[:, 0] + cos * arm[:, 1]], axis=1)
        onward = np.concatenate([scene[:, 6:8] + turned, handle[:, 2:]], axis=1)
        # The fingers close along the door; its handle is round, so half a turn more or less is the same.
        door = np.arctan2(scene[:, 9], scene[:, 8])
        return onward, nearest_turn(door, np.where(self._other_way, -0.3, 0.3), np.pi)


class DrawerExpert(HandleExpert):
    """Leads the handle straight out."""

    def _way(self, scene: Array, handle: Array) -> tuple[Array, Array]:
        out = -np.stack([scene[:, 6], scene[:, 7], np.zeros(len(scene))], axis=1)
        yaw = np.arctan2(scene[:, 7], scene[:, 6])
        return handle + 0.03 * out, nearest_turn(yaw, np.zeros(len(yaw)), np.pi)
