"""Reach's demonstrator."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from sims.base import FloatArray
from sims.experts.base import OPEN_M, Array, ToolExpert


class ReachExpert(ToolExpert):
    """Go to the goal, perhaps by a via point at its side."""

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``."""
        state, goal = obs["state"].astype(np.float64), obs["environment_state"][:, :3].astype(np.float64)
        tcp = state[:, :3]
        via = goal + (self._side * self._detour)[:, None] * (0.0, 1.0, 0.0)
        arrived = np.linalg.norm(via - tcp, axis=1) < 0.03
        self._enter(1, (self._phase == 0) & (arrived | (self._clock > 25) | (self._detour == 0)))
        target = np.where((self._phase == 0)[:, None], via, goal)
        zero = np.zeros(len(tcp))
        return self._toward(state, target, zero, zero + OPEN_M)
