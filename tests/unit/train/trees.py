"""Exact comparison of state trees, for tests."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch


def assert_trees_equal(a: Any, b: Any, path: str = "state") -> None:
    """Fail at the first leaf whose type, dtype, shape or bits differ."""
    assert type(a) is type(b), f"{path}: {type(a)} and {type(b)}"
    if isinstance(a, dict):
        assert list(a) == list(b), f"{path}: keys {list(a)} and {list(b)}"
        for key in a:
            assert_trees_equal(a[key], b[key], f"{path}.{key}")
    elif isinstance(a, list | tuple):
        assert len(a) == len(b), path
        for i, (x, y) in enumerate(zip(a, b, strict=True)):
            assert_trees_equal(x, y, f"{path}[{i}]")
    elif isinstance(a, torch.Tensor):
        assert a.dtype == b.dtype and torch.equal(a, b), f"{path}: {a} and {b}"
    elif isinstance(a, np.ndarray):
        assert a.dtype == b.dtype and np.array_equal(a, b), f"{path}: {a} and {b}"
    else:
        assert a == b, f"{path}: {a} and {b}"
