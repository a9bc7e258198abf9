"""What demonstrators of tasks with little room share: braking before the target, a steadier hand beside the object."""

from __future__ import annotations

import numpy as np

from sims.base import BoolArray
from sims.experts.base import Array, ToolExpert

STEADIER = 0.6
"""Part of the hand's wandering that disappears where care is taken."""


class CarefulExpert(ToolExpert):
    """Actions move the reference, which runs ahead of the arm by some 0.1 s: asking for all of an error at once
    overshoots by centimetres. So the tool is asked for a part of it only: ``gain`` of it per control step.
    """

    gain = 0.25

    @property
    def _hurry(self) -> Array:
        """Gain of this demonstrator: a wandering hand is corrected more hastily, or it would never arrive."""
        return np.asarray(self.gain + 40.0 * self.config.noise_m)

    @property
    def _slack_m(self) -> float:
        """How much further off than the clean expert this demonstrator finds good enough."""
        return 1.2 * self.config.noise_m

    def _approach(self, state: Array, target: Array, yaw_rad: Array, opening: Array, careful: BoolArray) -> Array:
        """As ``_toward``, braking; with a steadier hand where ``careful`` [E]."""
        tcp = state[:, :3]
        action = self._toward(state, tcp + self._hurry * (target - tcp), yaw_rad, opening)
        wandered = np.where((self._pause == 0)[:, None], self._noise, 0.3 * self._noise)
        action[:, :3] -= STEADIER * np.where(careful[:, None], wandered, 0.0)
        return action
