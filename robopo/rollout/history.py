"""The last To observations of every environment, as the policy wants to see them."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopo.errors import ConfigError, ShapeError, did_you_mean
from sims.base import SimSpec

Arrays = Mapping[str, NDArray[Any]]
Mask = NDArray[np.bool_]


class SeenSpec(Protocol):
    """The part of a policy's spec that says what it sees; pictures may be missing from it."""

    @property
    def obs(self) -> Mapping[str, int]: ...
    @property
    def obs_steps(self) -> int: ...


class ObsHistory:
    """Rolling windows, one array per observation: float32 [E, To, D], and pictures [E, To, height, width, 3] uint8.

    The newest row is last. An episode that is younger than To steps has its first observation in the rows before it.
    """

    def __init__(
        self,
        obs: Mapping[str, int],
        *,
        num_envs: int,
        obs_steps: int,
        images: Mapping[str, tuple[int, int, int]] | None = None,
    ) -> None:
        """obs: name -> D. images: name -> (height, width, 3)."""
        if obs_steps < 1:
            raise ConfigError(f"obs_steps={obs_steps}: expected 1 or more; a policy sees at least one observation")
        self._windows: dict[str, NDArray[Any]] = {
            key: np.zeros((num_envs, obs_steps, size), np.float32) for key, size in obs.items()
        }
        for key, shape in (images or {}).items():
            self._windows[key] = np.zeros((num_envs, obs_steps, *shape), np.uint8)

    @classmethod
    def of(cls, spec: SeenSpec, sim: SimSpec, num_envs: int, also: Collection[str] = ()) -> ObsHistory:
        """What a policy of ``spec`` sees of ``sim``, and the further entries ``also`` (numbers), for a critic."""
        more = {key: sim.observation[key].shape[0] for key in also if key not in spec.obs}
        images: Mapping[str, tuple[int, int, int]] = getattr(spec, "images", {})
        return cls({**spec.obs, **more}, num_envs=num_envs, obs_steps=spec.obs_steps, images=images)

    def reset(self, obs: Arrays, mask: Mask) -> None:
        """Where ``mask`` [E], fill the window with ``obs`` (entries [E, ...]), the first observation of an episode."""
        for key, window in self._windows.items():
            window[mask] = self._entry(obs, key)[mask, None]

    def push(self, obs: Arrays, mask: Mask) -> None:
        """Where ``mask`` [E], drop the oldest row and append ``obs`` (entries [E, ...])."""
        for key, window in self._windows.items():
            entry = self._entry(obs, key)
            if window.shape[1] > 1:
                window[mask, :-1] = window[mask, 1:]  # the right side is a copy: boolean indexing never aliases
            window[mask, -1] = entry[mask]

    def torch(self, device: torch.device | str) -> dict[str, Tensor]:
        """The windows as new tensors, which later pushes don't change: numbers on ``device``, pictures on the host."""
        return {
            key: torch.from_numpy(window).to("cpu" if window.dtype == np.uint8 else device, copy=True)
            for key, window in self._windows.items()
        }

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
