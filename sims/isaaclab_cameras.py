"""Cameras through Newton's own renderer: no display, no OpenGL, the CPU or CUDA."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import mujoco
import numpy as np

from sims.isaaclab_engine import load

FOCAL_MM = 24.0


@dataclass(frozen=True, slots=True)
class CameraOptions:
    """Which of the scene's cameras are observed, and how."""

    names: tuple[str, ...] = ()
    size: int = 64
    """Pixels along each side."""
    depth: bool = False
    """Add ``depth_<camera>`` [E, size * size] in metres."""


def camera_settings(model: mujoco.MjModel, name: str, options: CameraOptions) -> Any:
    """Isaac Lab's configuration of the model's camera ``name``. ValueError for an unknown one."""
    known = [model.camera(i).name for i in range(model.ncam)]
    if name not in known:
        raise ValueError(f"unknown camera {name!r}: this scene has {', '.join(known)}")
    camera = model.camera(name)
    body = int(camera.bodyid[0])
    parent = "{ENV_REGEX_NS}" if body == 0 else f"{{ENV_REGEX_NS}}/Robot/{model.body(body).name}"
    w, x, y, z = (float(value) for value in camera.quat)
    aperture = 2.0 * FOCAL_MM * float(np.tan(0.5 * np.radians(float(model.cam_fovy[camera.id]))))
    sensors, sim = load("isaaclab.sensors"), load("isaaclab.sim")
    return sensors.CameraCfg(
        prim_path=f"{parent}/camera_{name}",
        # MuJoCo's cameras look along -z with y up, as OpenGL's do.
        offset=sensors.CameraCfg.OffsetCfg(pos=tuple(camera.pos.tolist()), rot=(x, y, z, w), convention="opengl"),
        spawn=sim.PinholeCameraCfg(
            focal_length=FOCAL_MM,
            horizontal_aperture=aperture,
            vertical_aperture=aperture,
            clipping_range=(0.01, 20.0),
        ),
        data_types=["rgb", "depth"] if options.depth else ["rgb"],
        width=options.size,
        height=options.size,
        renderer_cfg=load("isaaclab_newton.renderers").NewtonWarpRendererCfg(),
    )


def camera_frames(sensor: Any, name: str, options: CameraOptions) -> dict[str, Any]:
    """The entries of one camera: pictures uint8 [E, height, width, 3], depths float32 [E, height * width]."""
    output = sensor.data.output
    frames = {f"image_{name}": output["rgb"].torch[..., :3].clone()}
    if options.depth:
        depth = output["depth"].torch.clone()
        frames[f"depth_{name}"] = depth.reshape(len(depth), -1)
    return frames
