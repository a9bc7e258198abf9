"""What is known of a gymnasium environment before its first step: entries, actions, rates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import gymnasium
import mujoco
import numpy as np
from gymnasium.spaces import Box, Dict
from numpy.typing import NDArray

from sims.base import Feature, image_feature
from sims.gymnasium_make import Made, is_restorable
from sims.render import open_gl_context

Pictures = NDArray[np.uint8]
Entries = dict[str, NDArray[Any]]
"""Observation entries [n, D] float32 and pictures [n, height, width, 3] uint8."""


class Entry(NamedTuple):
    """One observation entry: its name, its key in a Dict observation (None: the whole observation), its feature."""

    name: str
    key: str | None
    feature: Feature


class Facts(NamedTuple):
    """What is known of an environment before its first step; crosses from worker processes."""

    entries: tuple[Entry, ...]
    action_space: Box
    action_names: tuple[str, ...] | None
    """Actuators of a MuJoCo model, where there are as many as actions."""
    cameras: tuple[str, ...]
    control_hz: float
    restorable: bool
    limit: int | None
    """The registered episode limit; None without one."""
    maskable: bool = True
    """Environments can be stepped one by one."""
    independent: bool = True
    """An episode follows from its own seed."""


def facts_of(made: Made, env_id: str) -> Facts:
    """What ``Facts`` says of a single environment."""
    env = made.env
    base: Any = env.unwrapped
    entries = observation_entries(env.observation_space, env_id)
    action = box_action(env.action_space, env_id)
    model = base.model if isinstance(getattr(base, "model", None), mujoco.MjModel) else None
    if model is not None and any(entry.feature.is_image for entry in entries):
        open_gl_context(16, 16).free()  # without it, say what to install; the environment itself would only crash
    names: tuple[str, ...] | None = None
    if model is not None and model.nu == np.prod(action.shape):
        names = tuple(model.actuator(i).name or f"actuator_{i}" for i in range(model.nu))
    cameras = tuple(model.camera(i).name for i in range(model.ncam)) if model is not None else ()
    return Facts(entries, action, names, cameras, control_rate(env), is_restorable(env), made.limit)


def control_rate(env: Any) -> float:
    """Steps per second: control_hz where the environment has one, 1 / dt where it has a dt, else the frame rate of its
    films, else 1 (unknown).
    """
    told = getattr(env.unwrapped, "control_hz", None)  # PushT's dt is that of its physics
    if isinstance(told, float | int) and told > 0:
        return float(told)
    dt = getattr(env.unwrapped, "dt", None)
    if isinstance(dt, float | int) and dt > 0:
        return float(round(1.0 / dt, 9))
    return float(env.metadata.get("render_fps") or 1.0)


def observation_entries(space: gymnasium.Space[Any], env_id: str) -> tuple[Entry, ...]:
    """A Box becomes ``state``, a Dict of Boxes its own names, each flattened; a picture becomes ``image_<name>``.

    Raises ValueError for anything else, pictures that aren't uint8 [height, width, 3] included.
    """
    parts: dict[str | None, gymnasium.Space[Any]] = {**space.spaces} if isinstance(space, Dict) else {None: space}
    entries: list[Entry] = []
    for key, part in parts.items():
        if not isinstance(part, Box):
            raise ValueError(  # noqa: TRY004  a setting is wrong, not an argument's type
                f"{env_id} shows {key or 'state'!r} as {part}: only Box, or a Dict of Boxes, can be read; wrap the "
                "environment (gymnasium.wrappers.FlattenObservation) in a maker of your own"
            )
        if len(part.shape) >= 2 and part.dtype == np.uint8:
            entries.append(Entry(image_name(key), key, picture(part, key or "pixels", env_id)))
        else:
            entries.append(Entry(key or "state", key, feature(part, key or "state")))
    names = [entry.name for entry in entries]
    if len(set(names)) < len(names):
        raise ValueError(f"{env_id} shows two entries under one name: {', '.join(names)}")
    return tuple(entries)


def image_name(key: str | None) -> str:
    """``image_<key>``; a key that says image_ already stays."""
    return key if key is not None and key.startswith("image_") else f"image_{key or 'pixels'}"


def picture(space: Box, name: str, env_id: str) -> Feature:
    """The feature of RGB uint8 [height, width, 3], or a ValueError."""
    if len(space.shape) != 3 or space.shape[2] != 3 or 3 in space.shape[:1]:
        raise ValueError(
            f"{env_id} shows {name!r} as uint8{list(space.shape)}, and pictures here are uint8[height, width, 3]: "
            "transpose or stack them in a maker of your own, or choose the state-based variant, often by env_kwargs"
        )
    return image_feature(space.shape[0], space.shape[1])


def feature(space: Box, name: str, names: tuple[str, ...] | None = None) -> Feature:
    """A Box, flattened; gymnasium tells no units."""
    size = int(np.prod(space.shape, dtype=np.int64))
    return Feature(
        shape=(size,),
        names=names or tuple(f"{name}_{i}" for i in range(size)),
        units=("",) * size,
        low=tuple(np.reshape(space.low, -1).astype(float).tolist()),
        high=tuple(np.reshape(space.high, -1).astype(float).tolist()),
    )


def empty(entries: Sequence[Entry], count: int) -> Entries:
    """Zeros [count, ...] of every entry."""
    return {e.name: np.zeros((count, *e.feature.shape), e.feature.dtype) for e in entries}


def box_action(space: gymnasium.Space[Any], env_id: str) -> Box:
    """The action space if it is a Box of floats, or a ValueError."""
    if not isinstance(space, Box) or not np.issubdtype(space.dtype, np.floating):
        raise ValueError(
            f"{env_id} takes {space}, and actions here are continuous: choose an environment with a Box of floats "
            "(many have a variant such as env_kwargs.continuous=true)"
        )
    return space
