"""Stops at the first NaN or infinity, names it, and keeps what is needed to look at it again."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from robopo.errors import NonFiniteError
from robopo.train.checkpoint import write_folder
from robopo.train.tree import Tree


def find_non_finite(tree: Tree, name: str = "") -> str | None:
    """Return the name and a count, ``"batch.reward (3 of 64 elements)"``, of the first tensor with a NaN or infinity.

    Walks dictionaries, lists, tuples and dataclasses. One device synchronisation per floating-point tensor.
    """
    for path, leaf in _leaves(tree, name):
        if isinstance(leaf, Tensor):
            bad = int((~torch.isfinite(leaf)).sum()) if leaf.is_floating_point() else 0
            size = leaf.numel()
        else:
            values = np.asarray(leaf)
            bad = int((~np.isfinite(values)).sum()) if values.dtype.kind == "f" else 0
            size = values.size
        if bad:
            return f"{path} ({bad} of {size} elements)"
    return None


def as_tree(value: Any) -> Tree:
    """Turn dataclasses and NamedTuples into dictionaries, recursively, without copying tensors."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_tree(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple) and hasattr(value, "_asdict"):
        value = value._asdict()  # pyright: ignore[reportAttributeAccessIssue] - a NamedTuple
    if isinstance(value, Mapping):
        return {key: as_tree(item) for key, item in cast("Mapping[Any, Any]", value).items()}
    return value


class NanGuard:
    """Checks trees of tensors and writes ``run_dir/nan/step_<n>`` when one is not finite."""

    def __init__(self, run_dir: Path) -> None:
        self._run_dir = run_dir

    def check(self, name: str, tree: Tree) -> None:
        """Raise NonFiniteError naming the first tensor of ``tree`` that holds a NaN or an infinity."""
        found = find_non_finite(tree, name)
        if found is not None:
            raise NonFiniteError(f"{found} is NaN or infinite")

    def dump(
        self, error: NonFiniteError, step: int, state: dict[str, Tree], *, write_policy: Callable[[Path], None]
    ) -> NonFiniteError:
        """Save ``state`` (the batch, and everything as it was before the step) and return the error to raise.

        The folder has the layout of a checkpoint: the policy, safetensors, JSON and a manifest.
        """
        folder = self._run_dir / "nan" / f"step_{step:08d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        try:
            write_folder(folder, step, {"error": str(error), **state}, write_policy=write_policy)
        except OSError as problem:
            return NonFiniteError(f"{error} at step {step}; the dump to {folder} failed too: {problem}")
        return NonFiniteError(
            f"{error} at step {step}. The batch and the state before it are in {folder}. "
            f"Replay: robopo doctor --replay {folder}. The last checkpoint of the run is unharmed."
        )


def _leaves(tree: Tree, path: str) -> Iterator[tuple[str, Any]]:
    if dataclasses.is_dataclass(tree) and not isinstance(tree, type):
        for field in dataclasses.fields(tree):
            yield from _leaves(getattr(tree, field.name), _join(path, field.name))
    elif isinstance(tree, Mapping):
        for key, item in cast("Mapping[Any, Any]", tree).items():
            yield from _leaves(item, _join(path, str(key)))
    elif isinstance(tree, list | tuple):
        for i, item in enumerate(cast("list[Any]", tree)):
            yield from _leaves(item, f"{path}[{i}]")
    elif isinstance(tree, Tensor | np.ndarray | float | np.floating):
        yield path, tree


def _join(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name
