"""Small timers that interlocks are made of. They take ``now_s``; none of them reads a clock."""

from __future__ import annotations

from collections import deque


class Sustained:
    """True once a condition has held without a gap for ``duration_s``."""

    def __init__(self, duration_s: float) -> None:
        self._duration_s = duration_s
        self._since_s: float | None = None

    def update(self, condition: bool, now_s: float) -> bool:
        if not condition:
            self._since_s = None
            return False
        if self._since_s is None:
            self._since_s = now_s
        return now_s - self._since_s >= self._duration_s

    def reset(self) -> None:
        self._since_s = None


class Streak:
    """True from the ``limit``-th True in a row."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self.count = 0

    def update(self, condition: bool) -> bool:
        self.count = self.count + 1 if condition else 0
        return self.count >= self._limit

    def reset(self) -> None:
        self.count = 0


class RateCounter:
    """True from the ``limit``-th event within ``window_s``."""

    def __init__(self, limit: int, window_s: float) -> None:
        self._limit, self._window_s = limit, window_s
        self._times: deque[float] = deque(maxlen=limit)

    def add(self, now_s: float) -> bool:
        self._times.append(now_s)
        return self.full(now_s)

    def full(self, now_s: float) -> bool:
        """Whether ``limit`` events lie within the window that ends now."""
        return len(self._times) == self._limit and now_s - self._times[0] <= self._window_s

    def reset(self) -> None:
        self._times.clear()


class Deadline:
    """Expired once nothing has fed it for ``timeout_s``; unfed means not started."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._fed_s: float | None = None

    def feed(self, now_s: float) -> None:
        self._fed_s = now_s

    def stop(self) -> None:
        self._fed_s = None

    def expired(self, now_s: float) -> bool:
        return self._fed_s is not None and now_s - self._fed_s > self._timeout_s
