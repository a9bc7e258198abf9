"""The clocks that drive gates and arms: the real one, and one that tests move by hand."""

from __future__ import annotations

import time


class RealClock:
    """``time.monotonic``; sleeps to absolute times, so lateness doesn't accumulate."""

    def now_s(self) -> float:
        return time.monotonic()

    def sleep_until(self, t_s: float) -> None:
        remaining = t_s - time.monotonic()
        if remaining > 0:
            time.sleep(remaining)


class ManualClock:
    """Time that stands still until told otherwise; sleeping jumps forward."""

    def __init__(self, start_s: float = 100.0) -> None:
        self._now_s = start_s

    def now_s(self) -> float:
        return self._now_s

    def advance(self, duration_s: float) -> None:
        """Move forward by ``duration_s`` >= 0."""
        if not duration_s >= 0:
            raise ValueError(f"duration_s={duration_s}: a monotonic clock only moves forward")
        self._now_s += duration_s

    def sleep_until(self, t_s: float) -> None:
        self._now_s = max(self._now_s, t_s)
