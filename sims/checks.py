"""Checks of what is handed to a VecSim, with one wording for all simulators."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray, SimSpec


def checked_action(action: FloatArray, num_envs: int, spec: SimSpec) -> NDArray[np.float64]:
    """[E, A] finite floats, or a ValueError that names the elements; clipping is the simulator's."""
    array = np.asarray(action)
    expected = (num_envs, *spec.action.shape)
    if array.shape != expected or not np.issubdtype(array.dtype, np.floating):
        names = ", ".join(spec.action.names)
        raise ValueError(
            f"action is {array.dtype}{list(array.shape)}, expected float{list(expected)} with elements ({names}) "
            f"for action_mode={spec.action_mode!r}"
        )
    if not np.isfinite(array).all():
        bad = np.unique(np.nonzero(~np.isfinite(array))[0]).tolist()
        raise ValueError(f"action has NaN or infinite elements in environments {bad}; nothing was stepped")
    return array.astype(np.float64)


def checked_mask(mask: BoolArray | None, num_envs: int) -> BoolArray:
    """[E] bool; None means everywhere."""
    if mask is None:
        return np.ones(num_envs, dtype=bool)
    array = np.asarray(mask)
    if array.shape != (num_envs,) or array.dtype != np.bool_:
        raise ValueError(f"mask is {array.dtype}{list(array.shape)}, expected bool[{num_envs}]")
    return array


def check_state(state: Mapping[str, NDArray[Any]], current: Mapping[str, NDArray[Any]]) -> None:
    """Raise ValueError unless ``state`` holds every array of ``current``, in its shape."""
    for name, array in current.items():
        if name not in state or np.shape(state[name]) != array.shape:
            found = list(np.shape(state[name])) if name in state else "missing"
            raise ValueError(f"state[{name!r}] is {found}, expected {list(array.shape)}: another task or num_envs?")
