"""Minimum-maximum scaling between physical units and the learner's [-1, 1]."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from robopo.errors import ConfigError, DataError, ShapeError, did_you_mean

EPSILON = 1e-6
"""Added to the range, as in the published statistics."""


class MinMaxNormalizer(nn.Module):
    """Per key and dimension, y = 2 (x - low) / (high - low + 1e-6) - 1, and its exact inverse.

    Buffers ``low_<n>`` and ``high_<n>`` [D] for the n-th of ``keys`` (names may hold dots, buffer names may not).
    """

    def __init__(self, bounds: Mapping[str, tuple[Tensor, Tensor]]) -> None:
        """bounds: key -> (low [D], high [D]); high >= low."""
        super().__init__()
        self.keys = tuple(sorted(bounds))
        self._index = {key: n for n, key in enumerate(self.keys)}
        for n, key in enumerate(self.keys):
            low, high = bounds[key]
            if low.shape != high.shape or low.ndim != 1:
                raise ShapeError(
                    f"bounds of {key!r} are {list(low.shape)} and {list(high.shape)}, expected one [D] each"
                )
            if not bool((torch.isfinite(low) & torch.isfinite(high) & (high >= low)).all()):
                raise DataError(f"bounds of {key!r} must be finite with high >= low; is there a NaN in the data?")
            dtype = torch.get_default_dtype()
            self.register_buffer(f"low_{n}", low.detach().clone().to(dtype))
            self.register_buffer(f"high_{n}", high.detach().clone().to(dtype))
        self._factors: dict[str, tuple[Tensor, Tensor, Tensor]] = {}

    @classmethod
    def fit(cls, data: Mapping[str, Tensor], min_range: float | Mapping[str, float] = 1e-2) -> MinMaxNormalizer:
        """Take the bounds of ``data``, key -> [N, D].

        min_range: a dimension that varies less (physical units; one number, or one per key with 1e-2 elsewhere) gets
        this range around its middle: dividing by the true one would turn sensor noise into signal.
        """
        bounds: dict[str, tuple[Tensor, Tensor]] = {}
        for key, values in data.items():
            if values.ndim != 2 or values.shape[0] == 0:
                raise DataError(f"{key!r} is {list(values.shape)}, expected [N, D] with N of at least 1")
            if not bool(torch.isfinite(values).all()):
                raise DataError(f"{key!r} holds NaN or infinity: clean the data before fitting the normaliser")
            smallest = min_range.get(key, 1e-2) if isinstance(min_range, Mapping) else min_range
            if smallest < 0.0:
                raise ConfigError(f"min_range={smallest} for {key!r}: must not be negative")
            low, high = values.amin(0).double(), values.amax(0).double()
            middle, half = (low + high) / 2.0, smallest / 2.0
            narrow = high - low < smallest
            bounds[key] = (torch.where(narrow, middle - half, low), torch.where(narrow, middle + half, high))
        return cls(bounds)

    def apply(self, key: str, x: Tensor) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        """Physical [..., D] -> normalised [..., D]."""
        low, gain, _ = self._factors.get(key) or self._remember(key)
        return (x - low) * gain - 1.0

    def invert(self, key: str, y: Tensor) -> Tensor:
        """Normalised [..., D] -> physical [..., D]."""
        low, _, half = self._factors.get(key) or self._remember(key)
        return torch.addcmul(low, y + 1.0, half)

    def bounds(self, key: str) -> tuple[Tensor, Tensor]:
        """(low [D], high [D]) of ``key``. Raises ConfigError for an unknown key."""
        n = self._index.get(key)
        if n is None:
            raise ConfigError(f"no statistics for {key!r}{did_you_mean(key, self.keys)}")
        return self._buffers[f"low_{n}"], self._buffers[f"high_{n}"]  # pyright: ignore[reportReturnType]  # filled in __init__

    def set_bounds(self, key: str, low: Tensor, high: Tensor) -> None:
        """Move the bounds of ``key`` to (low [D], high [D]), in place, so that they are saved and exported with it."""
        old = self.bounds(key)
        if low.shape != old[0].shape or high.shape != old[0].shape:
            raise ShapeError(
                f"bounds of {key!r} are {list(low.shape)} and {list(high.shape)}, expected {list(old[0].shape)} each"
            )
        with torch.no_grad():
            for buffer, value in zip(old, (low, high), strict=True):
                buffer.copy_(value)
        self._factors.pop(key, None)

    def _remember(self, key: str) -> tuple[Tensor, Tensor, Tensor]:
        """(low, 2 / range, range / 2) of ``key``, kept until the bounds move or are loaded."""
        low, high = self.bounds(key)
        # Plain tensors even under inference mode, or a later pass with a graph would refuse them.
        with torch.inference_mode(mode=False), torch.no_grad():
            width = high - low + EPSILON
            self._factors[key] = (low, 2.0 / width, 0.5 * width)
        return self._factors[key]

    def _apply(self, fn: Any, recurse: bool = True) -> MinMaxNormalizer:
        self._factors = {}
        return super()._apply(fn, recurse)

    def _load_from_state_dict(self, *args: Any, **kwargs: Any) -> None:
        self._factors = {}
        super()._load_from_state_dict(*args, **kwargs)
