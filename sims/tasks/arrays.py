"""The few array operations that tasks need, for numpy arrays and torch tensors alike.

Task code calls these and plain operators only, so a simulator on another device shares it unchanged.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from types import ModuleType
from typing import Any

import numpy as np

Array = Any
"""A numpy array or a torch tensor, batched over environments in its first axis."""


def namespace(x: Array) -> ModuleType:
    """The module (numpy or torch) whose functions take ``x``; torch is never imported for its own sake."""
    torch = sys.modules.get("torch")
    return torch if torch is not None and isinstance(x, torch.Tensor) else np


def norm(x: Array) -> Array:
    """Euclidean length over the last axis."""
    return (x * x).sum(-1) ** 0.5


def stack(columns: Sequence[Array]) -> Array:
    """[E] columns → [E, n]."""
    return namespace(columns[0]).stack(columns, -1)


def concat(parts: Sequence[Array]) -> Array:
    """[E, a], [E, b], … → [E, a + b + …]."""
    return namespace(parts[0]).concatenate(parts, -1)


def quaternion_axes(q: Array) -> Array:
    """Unit quaternions [E, 4] (wxyz) → the first two rotation-matrix columns [E, 6], x axis first.

    Continuous in the rotation, unlike the quaternion (Zhou et al. 2019, "On the continuity of rotation
    representations").
    """
    w, x, y, z = q[..., 0], q[..., 1], q[..., 2], q[..., 3]
    return stack(
        [
            1 - 2 * (y * y + z * z),
            2 * (x * y + w * z),
            2 * (x * z - w * y),
            2 * (x * y - w * z),
            1 - 2 * (x * x + z * z),
            2 * (y * z + w * x),
        ]
    )
