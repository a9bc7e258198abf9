"""Many small frames of one MuJoCo model, drawn one after another in this thread.

Software rendering of a small frame costs vertices, not pixels: round shapes get fewer faces here than MuJoCo's own 28 x
16, the buffer has exactly the frame's size, and only the kinematics that drawing needs are computed.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.base import FloatArray
from sims.render import GLContext, camera_index, scene_capacity

FULL_PHYSICS = int(mujoco.mjtState.mjSTATE_FULLPHYSICS)


@dataclass(frozen=True, slots=True)
class DrawStyle:
    """What a frame costs and how it looks."""

    slices: int = 12
    """Faces round a cylinder, capsule or sphere; MuJoCo's default is 28, which takes 2.5 times as long."""
    stacks: int = 8
    """Faces along them; MuJoCo's default is 16."""
    quads: int = 1
    """Faces along each edge of a box or plane (MuJoCo: 4): more only where a spot light falls on a large one."""
    skybox: bool = True
    """Draw the scene's sky; else the background is black, and a frame takes a tenth less."""
    shadows: bool = False
    """Shadows of lights that cast them."""

    def __post_init__(self) -> None:
        if self.slices < 3 or self.stacks < 2 or self.quads < 1:
            raise ValueError(f"{self}: at least 3 slices, 2 stacks and 1 quad are needed")


class Batch(NamedTuple):
    """n environments to draw; checked already.

    physics [n, nstate] rows of mjSTATE_FULLPHYSICS; mocap_pos [n, nmocap, 3] and mocap_quat [n, nmocap, 4], None: as in
    the model; fields: name of an MjModel field -> [n, …], see VisualOverrides.absolute.
    """

    physics: FloatArray
    mocap_pos: FloatArray | None
    mocap_quat: FloatArray | None
    fields: Mapping[str, FloatArray]

    def part(self, rows: slice) -> Batch:
        """Some of the environments."""
        pos, quat = self.mocap_pos, self.mocap_quat
        return Batch(
            self.physics[rows],
            None if pos is None else pos[rows],
            None if quat is None else quat[rows],
            {name: array[rows] for name, array in self.fields.items()},
        )


class SceneRenderer:
    """Draws one model's cameras into frames of one size. Belongs to the thread that made it."""

    def __init__(
        self, model: mujoco.MjModel, cameras: Sequence[str], *, width: int, height: int, style: DrawStyle
    ) -> None:
        """``model`` is copied. ValueError for an unknown camera, RuntimeError without a GL library."""
        self._model = model = copy.copy(model)
        model.vis.global_.offwidth, model.vis.global_.offheight = width, height
        quality = model.vis.quality
        quality.offsamples, quality.numquads = 0, style.quads
        quality.numslices, quality.numstacks = style.slices, style.stacks
        self._cameras = [_fixed_camera(camera_index(model, name)) for name in cameras]
        self._data = mujoco.MjData(model)
        self._mocap = self._data.mocap_pos.copy(), self._data.mocap_quat.copy()
        self._context = GLContext(model, width, height)
        self._scene = mujoco.MjvScene(model, maxgeom=scene_capacity(model))
        flags = mujoco.mjtRndFlag
        self._scene.flags[:] = 0
        self._scene.flags[flags.mjRND_CULL_FACE] = True  # a third of the time
        self._scene.flags[flags.mjRND_SKYBOX] = style.skybox
        self._scene.flags[flags.mjRND_SHADOW] = style.shadows
        self._option = mujoco.MjvOption()  # groups 0 to 2
        self._viewport = mujoco.MjrRect(0, 0, width, height)
        self._pixels = np.empty((height, width, 3), dtype=np.uint8)

    def draw(
        self, batch: Batch, frames: Sequence[NDArray[np.uint8]], progress: Callable[[], None] | None = None
    ) -> None:
        """Fill frames, one array [n, height, width, 3] per camera. progress: called after each environment."""
        if not self._context.free.alive:
            raise RuntimeError("this renderer is closed: make a new one")
        self._context.make_current()
        model, data, scene = self._model, self._data, self._scene
        originals = {name: getattr(model, name).copy() for name in batch.fields}
        try:
            for row in range(len(batch.physics)):
                for name, values in batch.fields.items():
                    getattr(model, name)[:] = values[row].reshape(originals[name].shape)
                self._pose(batch, row)
                for camera, out in zip(self._cameras, frames, strict=True):
                    mujoco.mjv_updateScene(model, data, self._option, None, camera, mujoco.mjtCatBit.mjCAT_ALL, scene)
                    mujoco.mjr_render(self._viewport, scene, self._context.gpu)
                    mujoco.mjr_readPixels(self._pixels, None, self._viewport, self._context.gpu)
                    out[row] = self._pixels[::-1]  # OpenGL's first row is the bottom one
                if progress is not None:
                    progress()
        finally:
            for name, values in originals.items():
                getattr(model, name)[:] = values

    def _pose(self, batch: Batch, row: int) -> None:
        """Everything that drawing reads: a fifth of mj_forward's time, the same pictures."""
        model, data = self._model, self._data
        mujoco.mj_setState(model, data, batch.physics[row], FULL_PHYSICS)
        data.mocap_pos[:] = self._mocap[0] if batch.mocap_pos is None else batch.mocap_pos[row]
        data.mocap_quat[:] = self._mocap[1] if batch.mocap_quat is None else batch.mocap_quat[row]
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_camlight(model, data)
        if model.nflex:
            mujoco.mj_flex(model, data)
        if model.ntendon:
            mujoco.mj_tendon(model, data)

    def close(self) -> None:
        """Free the GL objects; callable twice."""
        self._context.free()


def _fixed_camera(index: int) -> mujoco.MjvCamera:
    camera = mujoco.MjvCamera()
    camera.type, camera.fixedcamid = mujoco.mjtCamera.mjCAMERA_FIXED, index
    return camera
