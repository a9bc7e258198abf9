"""Camera entries of the native simulator: drawn by processes of their own, kept until their environment moves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.base import Feature, image_feature
from sims.batch_render import BatchRenderer
from sims.render_overrides import VisualOverrides

PREFIX = "image_"


class MujocoPictures:
    """The newest frame of every environment and camera; a frame is drawn again only when its environment changed."""

    def __init__(
        self, model: mujoco.MjModel, cameras: Sequence[str], *, size: int, num_envs: int, num_workers: int
    ) -> None:
        """size: pixels along each side. num_workers: processes that draw; 0: in the calling thread.

        Raises ValueError for an unknown camera, RuntimeError where no GL library works.
        """
        self._renderer = BatchRenderer(model, cameras, width=size, height=size, num_workers=num_workers)
        self._frames = {camera: np.zeros((num_envs, size, size, 3), np.uint8) for camera in cameras}
        self._rows = np.zeros(0, dtype=np.int64)

    @property
    def features(self) -> dict[str, Feature]:
        """Describes the entries."""
        shape = next(iter(self._frames.values())).shape
        return {PREFIX + camera: image_feature(*shape[1:3]) for camera in self._frames}

    def begin(
        self,
        rows: NDArray[np.int64],
        physics: NDArray[np.float64],
        fixtures: NDArray[np.float64],
        looks: VisualOverrides | None,
    ) -> None:
        """Begin to draw ``rows``; physics [E, nstate], fixtures [E, nmocap, 7] of all environments, looks of all."""
        self._rows = rows
        self._renderer.submit(
            physics[rows],
            mocap_pos=fixtures[rows, :, :3],
            mocap_quat=fixtures[rows, :, 3:],
            overrides=None if looks is None else looks.rows(rows),
        )

    def finish(self) -> None:
        """Wait for what ``begin`` began."""
        for camera, frames in self._renderer.result().items():
            self._frames[camera][self._rows] = frames

    def entries(self) -> dict[str, Any]:
        """Copies of the newest frames, entries [E, size, size, 3] uint8."""
        return {PREFIX + camera: frames.copy() for camera, frames in self._frames.items()}

    def close(self) -> None:
        """End the drawing processes; callable twice."""
        self._renderer.close()
