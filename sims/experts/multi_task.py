"""The demonstrator of several tasks: each environment is led by the one of the task that it is doing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from sims.base import BoolArray, FloatArray
from sims.experts.base import Array, Expert


class MultiTaskExpert:
    """Experts in the order of the entry ``task``."""

    def __init__(self, experts: Sequence[Expert]) -> None:
        self._experts = tuple(experts)

    def reset(self, mask: BoolArray) -> None:
        """See ``Expert.reset``."""
        for expert in self._experts:
            expert.reset(mask)

    def act(self, obs: Mapping[str, FloatArray]) -> Array:
        """See ``Expert.act``; all of them are asked, since each keeps its own phases of every environment."""
        actions = np.stack([expert.act(obs) for expert in self._experts])
        return actions[obs["task"].argmax(axis=1), np.arange(actions.shape[1])]
