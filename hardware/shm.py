"""One-writer rings in shared memory: fixed dtypes, no pickle, no locks, no waiting.

Each slot is guarded by a sequence number that is odd while it is being written, and by a checksum: the checksum is what
makes a torn read impossible on machines that reorder stores, and a writer killed in the middle of a record harmless.
"""

from __future__ import annotations

import contextlib
import zlib
from multiprocessing.shared_memory import SharedMemory
from typing import Any, Self

import numpy as np

_HEADER = 64
_TRIES = 8


class ShmRing:
    """``slots`` records of ``dtype``. The creator owns the memory; one process writes, any number read."""

    def __init__(self, dtype: np.dtype[Any], slots: int, *, name: str | None = None) -> None:
        """Without a name it creates; a name attaches to what another process created with the same dtype and slots."""
        self.dtype, self.slots = dtype, slots
        self._entry = np.dtype([("lock", np.uint64), ("crc", np.uint64), ("payload", dtype)])
        size = _HEADER + slots * self._entry.itemsize
        self._owner = name is None
        self._memory = SharedMemory(name=name, create=name is None, size=size if name is None else 0)
        if self._memory.size < size:
            found = self._memory.size
            self._memory.close()
            raise ValueError(f"shared memory {name!r} holds {found} bytes, expected {size}: another dtype or slots?")
        self._bytes = memoryview(self._memory.buf or b"")
        self._count = np.ndarray((), np.uint64, self._bytes)
        self._locks = [
            np.ndarray((2,), np.uint64, self._bytes, _HEADER + i * self._entry.itemsize) for i in range(slots)
        ]
        self.scratch = np.zeros((), dtype)
        """The writer fills this record, then calls ``publish``."""

    @property
    def name(self) -> str:
        """What another process attaches to."""
        return self._memory.name

    @property
    def count(self) -> int:
        """Records published so far; the newest has index count - 1."""
        return int(self._count)

    def publish(self) -> int:
        """Write ``scratch`` as the next record; returns its index."""
        index = self.count
        lock = self._locks[index % self.slots]
        payload = self.scratch.tobytes()
        lock[0] += 1 if lock[0] % 2 == 0 else 2  # a predecessor killed while writing left it odd
        start = self._start(index)
        self._bytes[start : start + len(payload)] = payload
        lock[1] = zlib.crc32(payload)
        lock[0] += 1
        self._count[...] = index + 1
        return index

    def read(self, index: int) -> Any | None:
        """Record ``index`` as a read-only copy; None if not yet written, overwritten, or torn at every try."""
        if not 0 <= index < self.count:
            return None
        lock = self._locks[index % self.slots]
        start = self._start(index)
        for _ in range(_TRIES):
            before = int(lock[0])
            payload = bytes(self._bytes[start : start + self.dtype.itemsize])
            crc = int(lock[1])
            if before % 2 == 0 and int(lock[0]) == before and zlib.crc32(payload) == crc:
                return None if self.count - index > self.slots else np.frombuffer(payload, self.dtype)[0]
        return None

    def latest(self, newer_than: int = -1) -> tuple[int, Any] | None:
        """Index and copy of the newest record, if its index exceeds ``newer_than``."""
        index = self.count - 1
        if index <= newer_than:
            return None
        record = self.read(index)
        return None if record is None else (index, record)

    def _start(self, index: int) -> int:
        return _HEADER + (index % self.slots) * self._entry.itemsize + 16

    def close(self) -> None:
        """Detach; the creator also frees the memory. Callable twice."""
        # Views must go before the mapping can.
        self._count, self._locks = np.zeros((), np.uint64), []
        self._bytes.release()
        self._memory.close()
        if self._owner:
            self._owner = False
            with contextlib.suppress(FileNotFoundError):
                self._memory.unlink()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
