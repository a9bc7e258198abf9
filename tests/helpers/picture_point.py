"""A point mass that draws its own pictures: the position is among the numbers, the goal is only to be seen."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray, Seed, SimSpec, Step, image_feature
from tests.helpers.point_mass import PointMass

REACH = 1.2
"""The picture shows coordinates in [-REACH, REACH]."""


class PicturePoint(PointMass):
    """``image_<camera>`` shows the goal in red and the point in green; ``environment_state`` still says the goal."""

    def __init__(
        self, num_envs: int = 4, *, cameras: tuple[str, ...] = ("front",), image_size: int = 32, **settings: Any
    ) -> None:
        super().__init__(num_envs, **settings)
        self._cameras, self._size = cameras, image_size
        images = {f"image_{camera}": image_feature(image_size, image_size) for camera in cameras}
        self._picture_spec = replace(super().spec, observation={**super().spec.observation, **images}, cameras=cameras)

    @property
    def spec(self) -> SimSpec:
        return self._picture_spec

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        return self._with_pictures(super().reset(seed, mask))

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        step = super().step(action, mask)
        return step._replace(obs=self._with_pictures(step.obs), final_obs=self._with_pictures(step.final_obs))

    def _with_pictures(self, obs: dict[str, FloatArray]) -> dict[str, Any]:
        pictures = {f"image_{camera}": self._draw(obs) for camera in self._cameras}
        return {**obs, **pictures}

    def _draw(self, obs: dict[str, FloatArray]) -> NDArray[np.uint8]:
        """[E, size, size, 3]."""
        grid = np.linspace(-REACH, REACH, self._size)
        out = np.zeros((self.num_envs, self._size, self._size, 3), np.uint8)
        for channel, key in enumerate(("environment_state", "state")):
            x, y = obs[key][:, 0, None, None], obs[key][:, 1, None, None]
            out[..., channel] = 255 * ((grid[None, None] - x) ** 2 + (grid[None, :, None] - y) ** 2 < 0.15**2)
        return out
