"""Stop on SIGINT and SIGTERM at the next safe moment; a second signal stops at once."""

from __future__ import annotations

import logging
import signal
from types import FrameType, TracebackType
from typing import Self

log = logging.getLogger(__name__)

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class StopSignal:
    """Context manager: the first signal is only remembered in ``received``, for the loop to look at.

    The loop finishes its iteration, saves and returns; ``exit_code`` is then 130 (SIGINT) or 143 (SIGTERM), as shells
    expect. A second signal gets the previous handler back, which ends the process. Outside the main thread, where
    Python allows no handlers, it does nothing.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, signal.Handlers | object] = {}

    @property
    def exit_code(self) -> int:
        """0, or 128 + the number of the received signal."""
        return 0 if self.received is None else 128 + self.received

    def __enter__(self) -> Self:
        try:
            for number in _SIGNALS:
                self._previous[number] = signal.signal(number, self._remember)
        except ValueError:
            log.debug("not in the main thread: signals keep their handlers")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._restore()

    def _remember(self, number: int, frame: FrameType | None) -> None:  # noqa: ARG002 - the signature of handlers
        if self.received is not None:
            self._restore()
            signal.raise_signal(number)
            return
        self.received = signal.Signals(number)
        log.warning("%s: finishing this iteration, then saving; once more to stop at once", self.received.name)

    def _restore(self) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)  # pyright: ignore[reportArgumentType] - it came from signal.signal
        self._previous = {}
