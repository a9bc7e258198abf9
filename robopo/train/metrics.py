"""Metrics of any shape to named floats."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, cast

import torch
from torch import Tensor


def flat(metrics: Any, prefix: str = "") -> dict[str, Any]:
    """Names and scalar leaves of a mapping, NamedTuple, dataclass or single scalar; a leaf that is None is left out."""
    if dataclasses.is_dataclass(metrics) and not isinstance(metrics, type):
        items = {field.name: getattr(metrics, field.name) for field in dataclasses.fields(metrics)}
    elif isinstance(metrics, tuple) and hasattr(metrics, "_asdict"):
        items = cast("dict[str, Any]", metrics._asdict())  # pyright: ignore[reportAttributeAccessIssue] - a NamedTuple
    elif isinstance(metrics, tuple | list):
        items = {str(i): value for i, value in enumerate(cast("tuple[Any, ...]", metrics))}
    elif isinstance(metrics, Mapping):
        items = dict(cast("Mapping[str, Any]", metrics))
    else:
        return {prefix or "loss": metrics}
    found: dict[str, Any] = {}
    for name, value in items.items():
        if value is not None:
            found |= flat(value, f"{prefix}/{name}" if prefix else name)
    return found


def to_scalars(metrics: Any) -> dict[str, float]:
    """Like ``flat``, as floats, with one device synchronisation for all tensors together."""
    leaves = flat(metrics)
    tensors = {
        name: value.detach().reshape(())
        for name, value in leaves.items()
        if isinstance(value, Tensor) and value.numel() == 1
    }
    values = (
        dict(zip(tensors, torch.stack([t.double() for t in tensors.values()]).tolist(), strict=True)) if tensors else {}
    )
    for name, value in leaves.items():
        if isinstance(value, Tensor) and value.numel() > 1:  # one curve per element, for example per denoising step
            values |= {f"{name}/{i}": float(x) for i, x in enumerate(value.detach().flatten().tolist())}
        elif not isinstance(value, Tensor):
            values[name] = float(value)
    return {name: values[name] for name in sorted(values)}
