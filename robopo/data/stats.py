"""Statistics of each column of a dataset, as plain arrays that can be fitted, stored and compared."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopo.data.demo import ACTION, DemoData
from robopo.errors import DataError

Float64Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, eq=False)
class ColumnStats:
    """Per element [D] over N frames. ``std`` is the population's (divided by N)."""

    min: Float64Array
    max: Float64Array
    mean: Float64Array
    std: Float64Array
    count: int

    def to_json(self) -> dict[str, Any]:
        """Plain lists under the names LeRobot uses (``count`` is a list of one)."""
        named = {"min": self.min, "max": self.max, "mean": self.mean, "std": self.std}
        return {**{name: value.tolist() for name, value in named.items()}, "count": [self.count]}


def column_stats(values: NDArray[Any]) -> ColumnStats:
    """Statistics of values [N, D], accumulated in float64."""
    if values.ndim != 2 or len(values) == 0:
        raise DataError(f"values of shape {values.shape}: statistics need [frames, elements] with at least one frame")
    wide = values.astype(np.float64)
    return ColumnStats(wide.min(axis=0), wide.max(axis=0), wide.mean(axis=0), wide.std(axis=0), len(wide))


def demo_stats(data: DemoData) -> Mapping[str, ColumnStats]:
    """Statistics of every observation entry of numbers and of ``action``."""
    numbers = {key: values for key, values in data.obs.items() if key not in data.images}
    return {key: column_stats(values) for key, values in {**numbers, ACTION: data.action}.items()}
