"""Headless frames of a MuJoCo scene, light enough for software rendering: one frame at a time, in this thread.

Many frames: sims/batch_render.py.
"""

from __future__ import annotations

import atexit
import importlib
import os
import sys
import weakref
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray


def gl_backends() -> tuple[str, ...]:
    """Back ends to try, in order: ``MUJOCO_GL`` alone when it is set; without a display EGL, then OSMesa."""
    chosen = os.environ.get("MUJOCO_GL", "").lower()
    if chosen:
        return (chosen,)
    if sys.platform == "darwin":
        return ("cgl",)
    return ("egl", "osmesa")


def open_gl_context(width: int, height: int) -> Any:
    """Create and select an offscreen GL context; RuntimeError names what was tried and the packages that help."""
    failures: list[str] = []
    for backend in gl_backends():
        try:
            context = importlib.import_module(f"mujoco.{backend}").GLContext(width, height)
            context.make_current()
        except Exception as error:  # noqa: BLE001  each back end fails in its own way: missing library, no device, wrong platform
            failures.append(f"{backend}: {type(error).__name__}: {error}")
        else:
            return context
    raise RuntimeError(
        "no headless OpenGL context could be opened (" + "; ".join(failures) + "). On Debian or Ubuntu: "
        "apt-get install libegl1 libgl1-mesa-dri, or libosmesa6 and MUJOCO_GL=osmesa"
    )


def camera_index(model: mujoco.MjModel, camera: str) -> int:
    """Number of the camera of that name; ValueError names the known ones."""
    index = mujoco.mj_name2id(model, mujoco.mjtObj.mjOBJ_CAMERA, camera)
    if index < 0:
        known = ", ".join(model.camera(i).name for i in range(model.ncam)) or "none"
        raise ValueError(f"unknown camera {camera!r}: known are {known}")
    return index


def scene_capacity(model: mujoco.MjModel) -> int:
    """A number of drawn shapes that this model never exceeds; unused ones cost only memory."""
    return 200 + 2 * int(model.ngeom) + int(model.nsite) + 2 * int(model.nwrap) + int(model.nskin) + int(model.nflex)


class GLContext:
    """A GL context and one model's meshes and textures in it, drawing into a frame buffer of its own.

    Belongs to the thread that made it. Freed by ``free`` (callable twice), with the object, or when the interpreter
    exits.
    """

    def __init__(self, model: mujoco.MjModel, width: int, height: int) -> None:
        window = open_gl_context(width, height)
        self.make_current = window.make_current
        self.gpu = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self.gpu)
        # At exit EGL is shut down by a hook set when the first context was opened, and hooks run last in, first out:
        # this one, set later, runs before it. weakref's own hook may be older than EGL's, and would come too late.
        self.free = weakref.finalize(self, _free, window, self.gpu)
        self.free.atexit = False
        atexit.register(self.free)


def _free(window: Any, gpu: mujoco.MjrContext) -> None:
    window.make_current()
    gpu.free()
    window.free()


class Renderer:
    """Draws one model into frames of one size. Not thread-safe: one renderer belongs to one thread."""

    def __init__(self, model: mujoco.MjModel, *, width: int, height: int) -> None:
        limit = (int(model.vis.global_.offwidth), int(model.vis.global_.offheight))
        if width > limit[0] or height > limit[1]:
            raise ValueError(f"frame {width}x{height} is larger than the scene's buffer {limit[0]}x{limit[1]}")
        self._model, self._size = model, (width, height)
        self._context = GLContext(model, width, height)
        self._scene = mujoco.MjvScene(model, maxgeom=scene_capacity(model))
        self._scene.flags[mujoco.mjtRndFlag.mjRND_SHADOW] = False
        self._scene.flags[mujoco.mjtRndFlag.mjRND_REFLECTION] = False
        self._option = mujoco.MjvOption()
        self._option.geomgroup[3] = 0  # collision-only shapes
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED

    def frame(self, data: mujoco.MjData, camera: str) -> NDArray[np.uint8]:
        """RGB [height, width, 3]; ``data`` must be forwarded. ValueError for an unknown camera, RuntimeError after
        close().
        """
        self._camera.fixedcamid = camera_index(self._model, camera)
        if not self._context.free.alive:
            raise RuntimeError("this Renderer is closed: make a new one")
        self._context.make_current()
        width, height = self._size
        mujoco.mjv_updateScene(
            self._model, data, self._option, None, self._camera, mujoco.mjtCatBit.mjCAT_ALL, self._scene
        )
        viewport = mujoco.MjrRect(0, 0, width, height)
        mujoco.mjr_render(viewport, self._scene, self._context.gpu)
        pixels = np.empty((height, width, 3), dtype=np.uint8)
        mujoco.mjr_readPixels(pixels, None, viewport, self._context.gpu)
        return pixels[::-1].copy()  # OpenGL's first row is the bottom one

    def close(self) -> None:
        """Free the GL objects; callable twice."""
        self._context.free()
