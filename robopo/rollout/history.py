"""The last To observations of every environment, as the policy wants to see them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopo.errors import ConfigError, ShapeError, did_you_mean

Arrays = Mapping[str, NDArray[Any]]
Mask = NDArray[np.bool_]


class ObsHistory:
    """Rolling float32 windows, one array [E, To, D] per observation name; the newest row is last.

    An episode that is younger than To steps has its first observation in the rows before it.
    """

    def __init__(self, obs: Mapping[str, int], *, num_envs: int, obs_steps: int) -> None:
        """obs: name -> D."""
        if obs_steps < 1:
            raise ConfigError(f"obs_steps={obs_steps}: expected 1 or more; a policy sees at least one observation")
        self._windows = {key: np.zeros((num_envs, obs_steps, size), np.float32) for key, size in obs.items()}

    def reset(self, obs: Arrays, mask: Mask) -> None:
        """Where ``mask`` [E], fill the window with ``obs`` (entries [E, D]), the first observation of an episode."""
        for key, window in self._windows.items():
            window[mask] = self._entry(obs, key)[mask, None]

    def push(self, obs: Arrays, mask: Mask) -> None:
        """Where ``mask`` [E], drop the oldest row and append ``obs`` (entries [E, D])."""
        for key, window in self._windows.items():
            entry = self._entry(obs, key)
            if window.shape[1] > 1:
                window[mask, :-1] = window[mask, 1:]  # the right side is a copy: boolean indexing never aliases
            window[mask, -1] = entry[mask]

    def torch(self, device: torch.device | str) -> dict[str, Tensor]:
        """The windows as new tensors [E, To, D] on ``device``; later pushes don't change them."""
        return {key: torch.from_numpy(window).to(device, copy=True) for key, window in self._windows.items()}

    def state_dict(self) -> dict[str, NDArray[Any]]:
        """Copies of the windows."""
        return {key: window.copy() for key, window in self._windows.items()}

    def load_state_dict(self, state: Arrays) -> None:
        """Continue from ``state_dict()``; another shape is a ShapeError."""
        for key, window in self._windows.items():
            found = self._entry(state, key)
            if found.shape != window.shape:
                raise ShapeError(f"history {key!r} is {found.shape}, expected {window.shape}: another num_envs or To?")
            window[:] = found

    @staticmethod
    def _entry(obs: Arrays, key: str) -> NDArray[Any]:
        if key not in obs:
            raise ShapeError(f"observation {key!r} is missing{did_you_mean(key, obs)}")
        return obs[key]
