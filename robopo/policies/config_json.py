"""Configurations as JSON values, and back."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from enum import Enum
from typing import Any, cast

from robopo.nn.activation import Activation
from robopo.nn.vision_resnet import Pool
from robopo.policies.config import Reduce
from robopo.processes.base import Prediction, ProcessKind
from robopo.processes.flow import TimeSampling

_ENUMS: dict[str, type[Enum]] = {
    "activation": Activation,
    "kind": ProcessKind,
    "pool": Pool,
    "prediction": Prediction,
    "reduce": Reduce,
    "time_sampling": TimeSampling,
}


def plain(config: Any) -> dict[str, Any]:
    """Dataclass -> JSON values."""
    values = {field.name: getattr(config, field.name) for field in dataclasses.fields(config)}
    return {name: value.value if isinstance(value, Enum) else value for name, value in values.items()}


def restore[C](cls: type[C], values: Mapping[str, Any]) -> C:
    """Inverse of ``plain``. Raises TypeError for a field that is missing or unknown: a default would hide it."""
    names = {field.name for field in dataclasses.fields(cast("Any", cls))}
    if names != set(values):
        raise TypeError(f"{cls.__name__}: fields {sorted(names ^ set(values))} are missing or unknown")
    return cls(**{name: _value(name, value) for name, value in values.items()})


def _value(name: str, value: Any) -> Any:
    if name in _ENUMS:
        return _ENUMS[name](value)
    return tuple(cast("list[Any]", value)) if isinstance(value, list) else value
