"""What makes a Python loop punctual: priority, no garbage collection, absolute times; and how punctual it was."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import signal
import sys
from collections.abc import Generator
from types import FrameType, TracebackType
from typing import NamedTuple, Self

import numpy as np

log = logging.getLogger(__name__)


@contextlib.contextmanager
def punctual(fifo_priority: int) -> Generator[bool]:
    """Freeze the garbage collector and, where permitted, run under SCHED_FIFO; yields whether that worked.

    fifo_priority 0 leaves the scheduler alone. Children started inside get the normal scheduler.
    """
    if "torch" in sys.modules:
        log.info("torch is loaded in the control process: expect jitter of several milliseconds")
    was_enabled = gc.isenabled()
    gc.collect()
    gc.freeze()
    gc.disable()
    before = _set_fifo(fifo_priority)
    try:
        yield before is not None
    finally:
        if before is not None:
            os.sched_setscheduler(0, before[0], before[1])
        if was_enabled:
            gc.enable()
        gc.unfreeze()


def _set_fifo(priority: int) -> tuple[int, os.sched_param] | None:
    if priority <= 0 or not hasattr(os, "sched_setscheduler"):
        return None
    before = (os.sched_getscheduler(0), os.sched_getparam(0))
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(priority))
    except OSError as error:
        log.warning(
            "no real-time priority (%s): give the user rtprio, or keep the control rate at 100 Hz or less", error
        )
        return None
    return before


class Timing(NamedTuple):
    """Distribution of one duration in milliseconds."""

    p50_ms: float
    p99_ms: float
    max_ms: float
    samples: int


def timing(seconds: list[float]) -> Timing:
    """Percentiles; all zero when nothing was measured."""
    if not seconds:
        return Timing(0.0, 0.0, 0.0, 0)
    p50, p99, most = np.percentile(np.array(seconds) * 1e3, [50, 99, 100])
    return Timing(float(p50), float(p99), float(most), len(seconds))


class Pacer:
    """Absolute due times of a periodic loop."""

    def __init__(self, period_s: float) -> None:
        self._period_s = period_s
        self._due_s: float | None = None
        self._woke_s: float | None = None
        self.periods_s: list[float] = []
        self.lateness_s: list[float] = []

    def restart(self) -> None:
        """Forget the schedule, keep the statistics: after a pause that was meant."""
        self._due_s = self._woke_s = None

    def woke(self, now_s: float) -> float:
        """Call first in each turn; returns when the next is due. A late turn shifts the schedule, never bunches it."""
        due_s = now_s if self._due_s is None else self._due_s
        self.lateness_s.append(max(0.0, now_s - due_s))
        if self._woke_s is not None:
            self.periods_s.append(now_s - self._woke_s)
        self._woke_s = now_s
        self._due_s = max(due_s + self._period_s, now_s)
        return self._due_s


class StopRequest:
    """Remembers SIGINT and SIGTERM instead of dying of them; outside the main thread it does nothing."""

    def __init__(self) -> None:
        self.received: str | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Self:
        try:
            for number in (signal.SIGINT, signal.SIGTERM):
                self._previous[number] = signal.signal(number, self._remember)
        except ValueError:
            log.debug("not in the main thread: signals keep their handlers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - it came from signal.signal
        self._previous = {}

    def _remember(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of handlers
        self.received = signal.Signals(number).name
