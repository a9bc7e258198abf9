"""What a person sees while training: a live bar on a terminal, a plain line now and then elsewhere."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

SHOWN = {
    "success": "success {:.1%}",
    "train/success": "noisy success {:.1%}",
    "return": "return {:.2f}",
    "loss": "loss {:.4f}",
    "steps_per_s": "{:,.0f} steps/s",
}
"""Metrics that the line shows when they are there, and how."""


class TrainProgress:
    """Progress of ``total`` iterations, of which ``start`` are done; use it as a context manager.

    Without a terminal (CI, a log file) it prints one line every ``every_s`` seconds, and the last one.
    """

    def __init__(
        self, title: str, total: int, *, start: int = 0, console: Console | None = None, every_s: float = 10.0
    ) -> None:
        self._console = console or Console(stderr=True)
        self._title, self._total, self._start, self._every_s = title, total, start, every_s
        self._began = self._printed = time.monotonic()
        self._shown: dict[str, float] = {}
        self._bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("eta"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[metrics]}"),
            console=self._console,
            disable=not self._console.is_terminal,
        )
        self._task = self._bar.add_task(title, total=total, completed=start, metrics="")

    def __enter__(self) -> Self:
        self._bar.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._bar.stop()

    def update(self, done: int, metrics: Mapping[str, float]) -> None:
        """Show that ``done`` iterations are finished; a metric missing this time keeps its last value."""
        self._shown.update({name: float(metrics[name]) for name in SHOWN if math.isfinite(metrics.get(name, math.nan))})
        text = "  ".join(SHOWN[name].format(value) for name, value in self._shown.items())
        self._bar.update(self._task, completed=done, metrics=text)
        now = time.monotonic()
        if not self._console.is_terminal and (now - self._printed >= self._every_s or done >= self._total):
            self._printed = now
            per_iteration = (now - self._began) / max(done - self._start, 1)
            eta_s = per_iteration * max(self._total - done, 0)
            self._console.print(
                f"{self._title} {done}/{self._total}  eta {eta_s:.0f} s  {text}", highlight=False, soft_wrap=True
            )
