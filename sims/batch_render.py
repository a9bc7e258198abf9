"""Frames of E environments, drawn off the physics threads by processes of their own.

with BatchRenderer(model, ("front", "side"), width=64, height=64, num_workers=2) as renderer:
    renderer.submit(physics)       # returns at once
    ...                            # step something else meanwhile
    frames = renderer.result()     # {"front": uint8 [E, 64, 64, 3], "side": ...}
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from types import TracebackType
from typing import Self

import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.base import FloatArray
from sims.render import camera_index
from sims.render_overrides import VisualOverrides
from sims.render_scene import FULL_PHYSICS, Batch, DrawStyle, SceneRenderer
from sims.render_worker import RenderWorker

Frames = dict[str, NDArray[np.uint8]]


class BatchRenderer:
    """Draws any number of states of one model through several cameras. Not thread-safe.

    A frame depends on its own state, mocap poses and overrides alone, not on E, on the number of workers or on
    what was drawn before.
    """

    def __init__(
        self,
        model: mujoco.MjModel,
        cameras: Sequence[str],
        *,
        width: int,
        height: int,
        num_workers: int = 1,
        style: DrawStyle | None = None,
        timeout_s: float = 60.0,
    ) -> None:
        """num_workers: processes that draw (one core each); 0 draws in the calling thread, inside ``submit``.

        ``model`` is copied: later changes to it show only in a new renderer. style: None is the fast one. timeout_s:
        a worker that gives no sign of life for so long is replaced.

        Raises ValueError for an unknown camera or a bad size, RuntimeError where no GL library works.
        """
        if width < 1 or height < 1 or num_workers < 0 or timeout_s <= 0:
            raise ValueError(f"{width=}, {height=}, {num_workers=}, {timeout_s=}: too small")
        if not cameras or len(set(cameras)) != len(cameras):
            raise ValueError(f"cameras={tuple(cameras)}: at least one is needed, each once")
        for camera in cameras:
            camera_index(model, camera)
        self._model, self._cameras, self._shape = model, tuple(cameras), (height, width, 3)
        self._columns = mujoco.mj_stateSize(model, FULL_PHYSICS)
        self._pending: tuple[Frames, list[slice]] | None = None
        style = style or DrawStyle()
        self._local: SceneRenderer | None = None
        self._workers: list[RenderWorker] = []
        if num_workers == 0:
            self._local = SceneRenderer(model, self._cameras, width=width, height=height, style=style)
        self._finalizer = weakref.finalize(self, _stop, self._workers)
        try:
            for _ in range(num_workers):
                self._workers.append(
                    RenderWorker(model, self._cameras, width=width, height=height, style=style, timeout_s=timeout_s)
                )
            for worker in self._workers:
                worker.wait_ready()
        except BaseException:
            self.close()
            raise

    @property
    def cameras(self) -> tuple[str, ...]:
        """Names, in the order of the frames' entries."""
        return self._cameras

    @property
    def pids(self) -> tuple[int, ...]:
        """Numbers of the worker processes."""
        return tuple(worker.pid for worker in self._workers)

    def render(
        self,
        physics: FloatArray,
        *,
        mocap_pos: FloatArray | None = None,
        mocap_quat: FloatArray | None = None,
        overrides: VisualOverrides | None = None,
    ) -> Frames:
        """``submit`` and ``result`` in one."""
        self.submit(physics, mocap_pos=mocap_pos, mocap_quat=mocap_quat, overrides=overrides)
        return self.result()

    def submit(
        self,
        physics: FloatArray,
        *,
        mocap_pos: FloatArray | None = None,
        mocap_quat: FloatArray | None = None,
        overrides: VisualOverrides | None = None,
    ) -> None:
        """Begin to draw E environments; the arrays may be changed as soon as this returns.

        physics [E, nstate]: rows of mjSTATE_FULLPHYSICS (time, qpos, qvel, act). mocap_pos [E, nmocap, 3] m, mocap_quat
        [E, nmocap, 4] wxyz: not part of the state; None: where the model has them. overrides: rows for the same E.

        Raises ValueError for a wrong shape, RuntimeError after close() or while another batch waits to be fetched.
        """
        if not self._finalizer.alive:
            raise RuntimeError("this BatchRenderer is closed: make a new one")
        if self._pending is not None:
            raise RuntimeError("a batch is being drawn already: fetch it with result() first")
        batch = self._checked(physics, mocap_pos, mocap_quat, overrides)
        count = len(batch.physics)
        frames = {camera: np.empty((count, *self._shape), dtype=np.uint8) for camera in self._cameras}
        shares: list[slice] = []
        if self._local is not None:
            self._local.draw(batch, list(frames.values()))
        elif count:
            workers = len(self._workers)
            shares = [slice(count * w // workers, count * (w + 1) // workers) for w in range(workers)]
            for worker, share in zip(self._workers, shares, strict=True):
                if share.start < share.stop:
                    worker.submit(batch.part(share))
        self._pending = frames, shares

    def result(self) -> Frames:
        """Wait for the batch: camera -> uint8 [E, height, width, 3], the caller's to keep.

        A worker that died or fell silent is replaced and its share drawn again; RuntimeError if that fails as well.
        """
        if not self._finalizer.alive:
            raise RuntimeError("this BatchRenderer is closed: make a new one")
        if self._pending is None:
            raise RuntimeError("nothing is being drawn: call submit() first")
        frames, shares = self._pending
        self._pending = None
        try:
            for worker, share in zip(self._workers, shares, strict=False):
                if share.start < share.stop:
                    worker.collect([array[share] for array in frames.values()])
        except BaseException:
            # Frames nobody fetched would be taken for those of the next batch.
            self.close()
            raise
        return frames

    def close(self) -> None:
        """End the workers, or free the GL context; callable twice. A batch not fetched is lost."""
        self._pending = None
        self._finalizer()
        if self._local is not None:
            self._local.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _checked(
        self,
        physics: FloatArray,
        mocap_pos: FloatArray | None,
        mocap_quat: FloatArray | None,
        overrides: VisualOverrides | None,
    ) -> Batch:
        physics = np.ascontiguousarray(physics, dtype=np.float64)
        if physics.ndim != 2 or physics.shape[1] != self._columns:
            raise ValueError(f"physics is {list(physics.shape)}, expected [E, {self._columns}] (mjSTATE_FULLPHYSICS)")
        count, nmocap = len(physics), int(self._model.nmocap)
        return Batch(
            physics,
            _checked_mocap("mocap_pos", mocap_pos, (count, nmocap, 3)),
            _checked_mocap("mocap_quat", mocap_quat, (count, nmocap, 4)),
            {} if overrides is None else overrides.absolute(self._model, count),
        )


def _checked_mocap(name: str, value: FloatArray | None, shape: tuple[int, ...]) -> FloatArray | None:
    if value is None:
        return None
    array = np.asarray(value, dtype=np.float64)
    if array.shape != shape:
        raise ValueError(f"{name} is {list(array.shape)}, expected {list(shape)}")
    return array


def _stop(workers: list[RenderWorker]) -> None:
    for worker in workers:
        worker.close()
    workers.clear()
