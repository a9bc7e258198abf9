"""Domain randomisation: which parameters vary, between what, and how a model takes them on.

A setting of all parameters is one vector u in [0, 1]^P, whoever proposes it (sims/task_samplers.py). Everything
physical is a pure function of u: value = low + u (high - low), or for whole numbers the cell that u falls into.
"""

from __future__ import annotations

import copy
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import isfinite
from typing import Any, NamedTuple

import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.render_overrides import VisualOverrides

Range = tuple[float, float]
MAX_LATENCY_STEPS = 50
_AXES = ("x", "y", "z")
_COLORS = ("red", "green", "blue")
_POSITIVE = ("object_mass", "object_friction", "pad_friction", "actuator_kp", "actuator_kv", "camera_fovy")
_NOT_NEGATIVE = ("joint_damping", "latency_steps", "observation_noise", "light_intensity")
_TRIPLES = {
    "light_position": _AXES,
    "object_color": _COLORS,
    "table_color": _COLORS,
}
_PER_CAMERA = {
    "camera_position": _AXES,
    "camera_rotation": _AXES,
    "camera_fovy": (),
}


@dataclass(frozen=True, slots=True)
class RandomizeConfig:
    """Ranges [low, high], inclusive; None leaves a parameter as the scene has it, and out of u. Scales multiply the
    scene's own value.
    """

    object_mass: Range | None = None
    """Scale of mass and inertia of every free body."""
    object_friction: Range | None = None
    """Scale of all friction coefficients of the free bodies' geoms. Where fingers hold an object, the pads' friction
    decides alone (their contact priority is higher).
    """
    pad_friction: Range | None = None
    """Scale of all friction coefficients of the geoms whose name contains ``pad``."""
    actuator_kp: Range | None = None
    """Scale of the position actuators' stiffness."""
    actuator_kv: Range | None = None
    """Scale of the position actuators' damping."""
    joint_damping: Range | None = None
    """Scale of the passive damping of all hinges and slides."""
    latency_steps: Range | None = None
    """Control steps between a command and its effect: whole numbers."""
    observation_noise: Range | Mapping[str, Range] | None = None
    """Standard deviation of the noise on every low-dimensional entry, in the entry's own units (m, rad); or one range
    per entry.
    """
    camera_position: Range | None = None
    """Offset (m) along each axis of the camera's own frame; every camera draws its own."""
    camera_rotation: Range | None = None
    """Rotation (rad) about each axis of the camera's own frame; every camera draws its own."""
    camera_fovy: Range | None = None
    """Scale of the vertical field of view; every camera draws its own."""
    light_position: Range | None = None
    """Offset (m) of the lights along each axis; a directional light, as the native scenes have, shows no difference."""
    light_intensity: Range | None = None
    """Scale of the lights' diffuse colour."""
    object_color: Range | None = None
    """Added to red, green and blue (0 to 1) of the free bodies' geoms."""
    table_color: Range | None = None
    """Added to red, green and blue (0 to 1) of the geom ``table``."""
    cameras: Sequence[str] = ()
    """Names of the cameras that move; empty: all of the scene."""

    def __post_init__(self) -> None:
        for name, value in self.ranges().items():
            kind = name.split(".", maxsplit=1)[0]
            low, high = _checked_range(name, value)
            if kind in _POSITIVE and low <= 0:
                raise ValueError(f"randomize.{name}=[{low}, {high}]: a scale must be positive")
            if kind in _NOT_NEGATIVE and low < 0:
                raise ValueError(f"randomize.{name}=[{low}, {high}]: can't be negative")
            if kind == "latency_steps" and (low % 1 or high % 1 or high > MAX_LATENCY_STEPS):
                raise ValueError(f"randomize.{name}=[{low}, {high}]: whole control steps, at most {MAX_LATENCY_STEPS}")

    def ranges(self) -> dict[str, Any]:
        """The ranges that are given, by name; a mapping as ``observation_noise.<entry>``."""
        found: dict[str, Any] = {}
        for name in (field.name for field in fields(self) if field.name != "cameras"):
            value = getattr(self, name)
            if isinstance(value, Mapping):
                if name != "observation_noise":
                    raise ValueError(f"randomize.{name} is a mapping, expected [low, high]")
                found |= {f"{name}.{entry}": inner for entry, inner in value.items()}
            elif value is not None:
                found[name] = value
        return found

    @classmethod
    def of(cls, config: RandomizeConfig | Mapping[str, Any] | None) -> RandomizeConfig | None:
        """What a YAML file says, as a config; None where nothing varies."""
        if isinstance(config, Mapping):
            known = [field.name for field in fields(cls)]
            for name in config:
                if name not in known:
                    near = difflib.get_close_matches(str(name), known, n=1)
                    hint = f"; did you mean {near[0]!r}?" if near else f"; known are {', '.join(known)}"
                    raise ValueError(f"randomize has no parameter {name!r}{hint}")
            config = cls(**{str(name): value for name, value in config.items()})
        return config if config is not None and config.ranges() else None


class Parameter(NamedTuple):
    """One coordinate of u."""

    name: str
    low: float
    high: float
    integer: bool = False


class ParameterSpace:
    """The P parameters of a config in a scene, and u ↔ physical values."""

    def __init__(self, config: RandomizeConfig, cameras: Sequence[str], entries: Sequence[str]) -> None:
        """cameras: all of the scene. entries: the low-dimensional observations that noise can be put on."""
        moved = tuple(config.cameras) or tuple(cameras)
        _check_names("cameras", moved, cameras)
        self.cameras = moved
        self.parameters = tuple(
            Parameter(full, *_checked_range(name, value), integer=name == "latency_steps")
            for name, value in config.ranges().items()
            for full in _expanded(name, moved)
        )
        noisy = [name.split(".", maxsplit=1)[1] for name in config.ranges() if name.startswith("observation_noise.")]
        _check_names("observation_noise", noisy, entries)
        self.names = tuple(parameter.name for parameter in self.parameters)
        self._low = np.array([parameter.low for parameter in self.parameters])
        self._high = np.array([parameter.high for parameter in self.parameters])
        self._integer = np.array([parameter.integer for parameter in self.parameters], dtype=np.bool_)

    @property
    def dim(self) -> int:
        """P."""
        return len(self.parameters)

    def physical(self, u: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take u [..., P] in [0, 1] → values [..., P]; ValueError for anything else."""
        if u.shape[-1:] != (self.dim,) or not ((u >= 0) & (u <= 1)).all():
            raise ValueError(f"u is {list(u.shape)}, expected [..., {self.dim}] with all elements in [0, 1]")
        smooth = self._low + u * (self._high - self._low)
        cells = np.minimum(self._low + np.floor(u * (self._high - self._low + 1)), self._high)
        return np.where(self._integer, cells, smooth)

    def unit(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Take values [..., P] → u, with ``physical(unit(v)) = v``; a range of no width gives 0.5."""
        width = self._high - self._low
        smooth = np.where(width > 0, (values - self._low) / np.where(width > 0, width, 1.0), 0.5)
        return np.clip(np.where(self._integer, (values - self._low + 0.5) / (width + 1), smooth), 0.0, 1.0)

    def named(self, values: NDArray[np.float64]) -> dict[str, NDArray[np.float64]]:
        """Split values [E, P] by name: name → [E], copies."""
        return {name: values[:, index].copy() for index, name in enumerate(self.names)}


class ModelRandomizer:
    """Writes physical values into copies of one MuJoCo model; the original is only read."""

    def __init__(self, model: mujoco.MjModel, config: RandomizeConfig, entries: Sequence[str]) -> None:
        """entries: names of the low-dimensional observations. ValueError where the scene lacks what should vary."""
        self.model = model
        self.space = ParameterSpace(config, [model.camera(i).name for i in range(model.ncam)], entries)
        self._data = mujoco.MjData(model)
        self._column = {name: index for index, name in enumerate(self.space.names)}
        self._bodies = free_bodies(model)
        names = [model.geom(i).name for i in range(model.ngeom)]
        self._objects = np.flatnonzero(np.isin(model.geom_bodyid, self._bodies))
        self._pads = np.flatnonzero(["pad" in name for name in names])
        self._table = np.flatnonzero([name == "table" for name in names])
        self._dofs = np.flatnonzero(model.jnt_type[model.dof_jntid] != mujoco.mjtJoint.mjJNT_FREE)
        self._servos = position_actuators(model)
        self._check_scene(config)

    def _check_scene(self, config: RandomizeConfig) -> None:
        needs = {
            "object_mass": (self._bodies, "free body"),
            "object_friction": (self._objects, "geom of a free body"),
            "object_color": (self._objects, "geom of a free body"),
            "pad_friction": (self._pads, "geom whose name contains 'pad'"),
            "table_color": (self._table, "geom named 'table'"),
            "actuator_kp": (self._servos, "position actuator"),
            "actuator_kv": (self._servos, "position actuator"),
            "light_position": (np.arange(self.model.nlight), "light"),
            "light_intensity": (np.arange(self.model.nlight), "light"),
        }
        for name, (found, what) in needs.items():
            if name in config.ranges() and len(found) == 0:
                raise ValueError(f"randomize.{name} is set, but the scene has no {what}; set it to null")

    def copies(self, count: int) -> list[mujoco.MjModel]:
        """``count`` models of their own, 0.1 MB each, for ``apply``."""
        return [copy.copy(self.model) for _ in range(count)]

    def value(self, values: NDArray[np.float64], name: str, default: float) -> NDArray[np.float64]:
        """Column ``name`` of values [..., P], or ``default`` everywhere."""
        if name in self._column:
            return values[..., self._column[name]]
        return np.full(values.shape[:-1], default)

    def apply(self, target: mujoco.MjModel, values: NDArray[np.float64]) -> None:
        """Give ``target`` (from ``copies``) the physics of values [P]; what it had before doesn't matter."""
        base = self.model

        def scale(name: str) -> float:
            return float(self.value(values, name, 1.0))

        if "object_mass" in self._column:
            target.body_mass[self._bodies] = base.body_mass[self._bodies] * scale("object_mass")
            target.body_inertia[self._bodies] = base.body_inertia[self._bodies] * scale("object_mass")
        if "object_friction" in self._column:
            target.geom_friction[self._objects] = base.geom_friction[self._objects] * scale("object_friction")
        if "pad_friction" in self._column:
            target.geom_friction[self._pads] = base.geom_friction[self._pads] * scale("pad_friction")
        if "joint_damping" in self._column:
            target.dof_damping[self._dofs] = base.dof_damping[self._dofs] * scale("joint_damping")
        if "actuator_kp" in self._column:  # force = kp (ctrl - length) - kv velocity
            target.actuator_gainprm[self._servos, 0] = base.actuator_gainprm[self._servos, 0] * scale("actuator_kp")
            target.actuator_biasprm[self._servos, 1] = base.actuator_biasprm[self._servos, 1] * scale("actuator_kp")
        if "actuator_kv" in self._column:
            target.actuator_biasprm[self._servos, 2] = base.actuator_biasprm[self._servos, 2] * scale("actuator_kv")
        if "object_mass" in self._column:
            # What the constraint solver derives from masses: subtree masses, inverse weights, mean inertia.
            mujoco.mj_setConst(target, self._data)

    def visual(self, values: NDArray[np.float64]) -> VisualOverrides | None:
        """What the environments of values [E, P] look like; None where nothing that is seen varies."""
        kinds = {name.split(".", maxsplit=1)[0] for name in self._column}
        base, count = self.model, len(values)
        seen: dict[str, NDArray[np.float64]] = {}
        if kinds & set(_PER_CAMERA):
            position, rotation = np.zeros((count, base.ncam, 3)), np.zeros((count, base.ncam, 3))
            fovy = np.zeros((count, base.ncam))
            for name in self.space.cameras:
                camera, matrix = int(base.camera(name).id), np.zeros(9)
                mujoco.mju_quat2Mat(matrix, base.cam_quat[camera])
                position[:, camera] = self._triple(values, f"camera_position.{name}", _AXES) @ matrix.reshape(3, 3).T
                rotation[:, camera] = self._triple(values, f"camera_rotation.{name}", _AXES)
                fovy[:, camera] = base.cam_fovy[camera] * (self.value(values, f"camera_fovy.{name}", 1.0) - 1.0)
            seen |= {"camera_position": position, "camera_rotation": rotation, "camera_fovy": fovy}
        if "light_position" in kinds:
            offset = self._triple(values, "light_position", _AXES)
            seen["light_position"] = np.repeat(offset[:, None], base.nlight, axis=1)
        if "light_intensity" in kinds:
            intensity = self.value(values, "light_intensity", 1.0)[:, None, None]
            seen["light_diffuse"] = np.clip(base.light_diffuse[None] * intensity, 0.0, 1.0)
        if kinds & {"object_color", "table_color"}:
            seen["geom_rgba"] = self._colors(values)
        return VisualOverrides(**seen) if seen else None

    def _triple(self, values: NDArray[np.float64], name: str, parts: Sequence[str]) -> NDArray[np.float64]:
        return np.stack([self.value(values, f"{name}.{part}", 0.0) for part in parts], axis=-1)  # [E, 3]

    def _colors(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        rgba = np.repeat(self.model.geom_rgba[None].astype(np.float64), len(values), axis=0)
        for name, geoms in (("object_color", self._objects), ("table_color", self._table)):
            rgba[:, geoms, :3] += self._triple(values, name, _COLORS)[:, None]
        return np.clip(rgba, 0.0, 1.0)


def free_bodies(model: mujoco.MjModel) -> NDArray[np.int64]:
    """Bodies that move with a free joint: the scene's objects."""
    free = model.jnt_bodyid[model.jnt_type == mujoco.mjtJoint.mjJNT_FREE]
    return np.flatnonzero(np.isin(model.body_rootid, free))


def position_actuators(model: mujoco.MjModel) -> NDArray[np.int64]:
    """Actuators whose force is kp (ctrl - length) - kv velocity."""
    affine = model.actuator_biastype == mujoco.mjtBias.mjBIAS_AFFINE
    return np.flatnonzero(affine & (model.actuator_gainprm[:, 0] == -model.actuator_biasprm[:, 1]))


def _expanded(name: str, cameras: Sequence[str]) -> list[str]:
    """The coordinates of one range: a colour has three, a camera's position three per camera."""
    owners = [f"{name}.{camera}" for camera in cameras] if name in _PER_CAMERA else [name]
    parts = _PER_CAMERA.get(name) or _TRIPLES.get(name)
    return [f"{owner}.{part}" for owner in owners for part in parts] if parts else owners


def _checked_range(name: str, value: Any) -> Range:
    numbers = list(value) if isinstance(value, Sequence) and not isinstance(value, str) else []
    if len(numbers) != 2 or not all(isinstance(n, int | float) and isfinite(n) for n in numbers):
        raise ValueError(f"randomize.{name}={value!r}: expected two finite numbers [low, high], or null")
    low, high = float(numbers[0]), float(numbers[1])
    if low > high:
        raise ValueError(f"randomize.{name}=[{low}, {high}]: low must not exceed high")
    return low, high


def _check_names(what: str, found: Sequence[str], known: Sequence[str]) -> None:
    for name in found:
        if name not in known:
            raise ValueError(f"randomize.{what} names {name!r}: the scene has {', '.join(known) or 'none'}")
