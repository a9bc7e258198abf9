"""What happened and why: an append-only log of events, and a ring with one fixed record per tick."""

from __future__ import annotations

import json
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hardware.types import ArmState


class EventLog:
    """JSON lines, one per event; kept in memory too. Without a path nothing touches the disk."""

    def __init__(self, path: Path | None = None) -> None:
        self.path = path
        self.records: list[dict[str, Any]] = []
        self.write_errors = 0
        """Lines the disk didn't take; motion goes on, the next ``enable`` is refused."""
        self._file = None
        if path is not None:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", buffering=1)

    def write(self, t_s: float, kind: str, **fields: Any) -> None:
        """Append one event at monotonic time ``t_s``; enums become names, arrays lists. Never raises for the disk."""
        record = {"t_s": t_s, "kind": kind, **{name: _plain(value) for name, value in fields.items()}}
        self.records.append(record)
        if self._file is not None:
            try:
                self._file.write(json.dumps(record) + "\n")
            except (OSError, ValueError):
                self.write_errors += 1

    def of(self, kind: str) -> list[dict[str, Any]]:
        """Every event of one kind, oldest first."""
        return [record for record in self.records if record["kind"] == kind]

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.name
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, np.generic):
        return value.item()
    return value


def tick_dtype(joints: int) -> np.dtype[Any]:
    """Record of one tick for an arm of n joints."""
    vector = (np.float64, (joints,))
    return np.dtype([
        ("t_s", np.float64), ("lateness_s", np.float64), ("state_age_s", np.float64), ("mode", np.uint8),
        ("source", np.uint8), ("rules", np.uint64), ("scale", np.float64), ("requested_rad", *vector),
        ("sent_rad", *vector), ("position_rad", *vector), ("velocity_rad_s", *vector),
        ("gripper_requested_m", np.float64), ("gripper_sent_m", np.float64), ("gripper_m", np.float64),
    ])  # fmt: skip


class TickRing:
    """The last ``capacity`` ticks, preallocated. ``rules`` is a bit mask by interlock number."""

    def __init__(self, joints: int, capacity: int = 6000) -> None:
        self._records = np.zeros(capacity, dtype=tick_dtype(joints))
        self.count = 0
        """Ticks recorded since construction."""

    def slot(self, t_s: float, state: ArmState | None) -> Any:
        """The next record, as a view into the ring, with the time and the sample filled in."""
        record = self._records[self.count % len(self._records)]
        self.count += 1
        record["t_s"] = t_s
        if state is not None:
            record["state_age_s"], record["gripper_m"] = t_s - state.t_sample_s, state.gripper_m
            record["position_rad"], record["velocity_rad_s"] = state.position_rad, state.velocity_rad_s
        return record

    def last(self, number: int | None = None) -> NDArray[Any]:
        """A copy of the last ``number`` records (all that are kept by default), oldest first."""
        kept = min(self.count, len(self._records))
        wanted = kept if number is None else min(number, kept)
        indices = np.arange(self.count - wanted, self.count) % len(self._records)
        return self._records[indices]

    def save(self, path: Path) -> None:
        """Write what is kept as one compressed array ``ticks``."""
        np.savez_compressed(path, ticks=self.last())
