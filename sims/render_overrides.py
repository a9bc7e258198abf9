"""What may look different in each environment: cameras moved a little, other lights, other colours."""

from __future__ import annotations

from dataclasses import dataclass, fields

import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.base import FloatArray

COLOURS = ("light_diffuse", "geom_rgba")
"""Given as such; the others are added to the model's own."""


@dataclass(frozen=True, slots=True)
class VisualOverrides:
    """Changes for E environments, in the model's order of cameras, lights and geoms; None leaves a thing as it is.

    They change pictures only, never physics.
    """

    camera_position: FloatArray | None = None
    """[E, ncam, 3] m, added to the camera's position in its body's frame."""
    camera_rotation: FloatArray | None = None
    """[E, ncam, 3] rad, a rotation vector about the camera's own axes (x right, y up, z backwards), applied last."""
    camera_fovy: FloatArray | None = None
    """[E, ncam] degrees, added to the vertical field of view; the sum must lie in (0, 180)."""
    light_position: FloatArray | None = None
    """[E, nlight, 3] m, added to the light's position in its body's frame (a directional light shows no difference)."""
    light_diffuse: FloatArray | None = None
    """[E, nlight, 3] RGB in [0, 1], instead of the light's own."""
    geom_rgba: FloatArray | None = None
    """[E, ngeom, 4] in [0, 1], instead of the geom's own."""

    def rows(self, chosen: slice | NDArray[np.integer] | NDArray[np.bool_]) -> VisualOverrides:
        """The same for some of the environments."""
        given = {f.name: getattr(self, f.name) for f in fields(self)}
        return VisualOverrides(**{name: None if array is None else array[chosen] for name, array in given.items()})

    def absolute(self, model: mujoco.MjModel, count: int) -> dict[str, FloatArray]:
        """Values to put into a model: name of an MjModel field -> [E, …]; ``model`` is not changed.

        Raises ValueError for another shape than [count, …], values that aren't finite or out of range.
        """
        given = self._checked(model, count)
        result: dict[str, FloatArray] = {}
        if "camera_position" in given:
            result["cam_pos"] = model.cam_pos + given["camera_position"]
        if "camera_rotation" in given:
            result["cam_quat"] = turned(model.cam_quat, given["camera_rotation"])
        if "camera_fovy" in given:
            result["cam_fovy"] = fovy = model.cam_fovy + given["camera_fovy"]
            if ((fovy <= 0) | (fovy >= 180)).any():
                raise ValueError(f"fields of view must lie in (0, 180) degrees, found {fovy.min():g} to {fovy.max():g}")
        if "light_position" in given:
            result["light_pos"] = model.light_pos + given["light_position"]
        result.update({name: given[name] for name in COLOURS if name in given})
        return result

    def _checked(self, model: mujoco.MjModel, count: int) -> dict[str, FloatArray]:
        """Those that were given, as float64."""
        shapes = {
            "camera_position": (count, model.ncam, 3),
            "camera_rotation": (count, model.ncam, 3),
            "camera_fovy": (count, model.ncam),
            "light_position": (count, model.nlight, 3),
            "light_diffuse": (count, model.nlight, 3),
            "geom_rgba": (count, model.ngeom, 4),
        }
        given: dict[str, FloatArray] = {}
        for name, shape in shapes.items():
            value = getattr(self, name)
            if value is None:
                continue
            given[name] = array = np.asarray(value, dtype=np.float64)
            if array.shape != shape:
                raise ValueError(f"overrides.{name} is {list(array.shape)}, expected {list(shape)}")
            if not np.isfinite(array).all():
                raise ValueError(f"overrides.{name} holds values that aren't finite")
            if name in COLOURS and ((array < 0) | (array > 1)).any():
                raise ValueError(f"overrides.{name} must lie in [0, 1], found {array.min():g} to {array.max():g}")
        return given


def turned(quaternion: FloatArray, rotation: FloatArray) -> FloatArray:
    """Unit quaternions [..., 4] (wxyz) followed by the rotation vectors [..., 3] (rad) in its own frame; broadcasts."""
    angle = np.linalg.norm(rotation, axis=-1, keepdims=True)
    w1, v1 = quaternion[..., :1], quaternion[..., 1:]
    w2, v2 = np.cos(angle / 2), 0.5 * np.sinc(angle / (2 * np.pi)) * rotation  # sinc(x) is sin(pi x) / (pi x)
    w = w1 * w2 - (v1 * v2).sum(axis=-1, keepdims=True)
    return np.concatenate([w, w1 * v2 + w2 * v1 + np.cross(v1, v2)], axis=-1)
