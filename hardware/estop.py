"""The gate's states as a table, and the emergency stop that survives a restart."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass
from enum import Enum, IntEnum
from pathlib import Path
from typing import Final

from hardware.types import HardwareError


class Mode(IntEnum):
    """State of the gate; integers because every tick is recorded in a fixed format."""

    DISCONNECTED = 0
    IDLE = 1
    RUNNING = 2
    HOLD = 3
    FAULT = 4
    ESTOP = 5


class Event(Enum):
    """What may change the state."""

    CONNECT = "connect"
    ENABLE = "enable"
    CHUNK = "chunk"
    SOFT_VIOLATION = "soft_violation"
    FAULT = "fault"
    ESTOP = "estop"
    RESET = "reset"
    DISCONNECT = "disconnect"


@dataclass(frozen=True, slots=True)
class Outcome:
    """Where an event leads; ``accepted`` False: declined, and ``mode`` is where it stays."""

    mode: Mode
    accepted: bool = True


def _row(mode: Mode, **outcomes: Mode | None) -> dict[tuple[Mode, Event], Outcome]:
    """Name every event of a state; None means declined."""
    return {
        (mode, Event[name.upper()]): Outcome(mode, accepted=False) if target is None else Outcome(target)
        for name, target in outcomes.items()
    }


_M = Mode
TRANSITIONS: Final[dict[tuple[Mode, Event], Outcome]] = {
    **_row(_M.DISCONNECTED, connect=_M.IDLE, enable=None, chunk=None, soft_violation=None, fault=None,
           estop=_M.ESTOP, reset=None, disconnect=None),
    **_row(_M.IDLE, connect=None, enable=_M.RUNNING, chunk=None, soft_violation=None, fault=_M.FAULT,
           estop=_M.ESTOP, reset=None, disconnect=_M.DISCONNECTED),
    **_row(_M.RUNNING, connect=None, enable=None, chunk=_M.RUNNING, soft_violation=_M.HOLD, fault=_M.FAULT,
           estop=_M.ESTOP, reset=None, disconnect=_M.DISCONNECTED),
    **_row(_M.HOLD, connect=None, enable=None, chunk=None, soft_violation=_M.HOLD, fault=_M.FAULT,
           estop=_M.ESTOP, reset=_M.RUNNING, disconnect=_M.DISCONNECTED),
    **_row(_M.FAULT, connect=None, enable=None, chunk=None, soft_violation=_M.FAULT, fault=_M.FAULT,
           estop=_M.ESTOP, reset=_M.IDLE, disconnect=_M.DISCONNECTED),
    # A latched gate may open and close the link (a reset needs a fresh read) but stays latched.
    **_row(_M.ESTOP, connect=_M.ESTOP, enable=None, chunk=None, soft_violation=_M.ESTOP, fault=_M.ESTOP,
           estop=_M.ESTOP, reset=_M.IDLE, disconnect=_M.ESTOP),
}  # fmt: skip


def transition(mode: Mode, event: Event) -> Outcome:
    """Look the pair up; one that isn't in the table is an emergency stop."""
    return TRANSITIONS.get((mode, event), Outcome(Mode.ESTOP))


class EStopLatch:
    """A file that exists while an emergency stop is latched, so that a restart can't clear it."""

    def __init__(self, path: Path) -> None:
        self._path = path

    @property
    def path(self) -> Path:
        """Where the latch lives."""
        return self._path

    def check_writable(self) -> None:
        """HardwareError unless a stop can be latched here; asked before anything moves."""
        probe = self._path.with_name(f".{self._path.name}.{os.getpid()}")
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            probe.touch()
            probe.unlink()
        except OSError as error:
            raise HardwareError(
                f"the emergency stop can't be latched in {self._path.parent} ({error}); make the folder writable"
            ) from error

    def latched(self) -> bool:
        """Whether a stop is latched; a folder that can't be looked at counts as latched."""
        try:
            return self._path.exists()
        except OSError:
            return True

    def reason(self) -> str:
        """Why, as recorded; an unreadable record says so and stays latched."""
        try:
            return str(json.loads(self._path.read_text())["reason"])
        except (OSError, ValueError, KeyError, TypeError):
            return "unreadable record"

    def latch(self, reason: str) -> None:
        """Write the record and force it to the disk. A second call keeps the first reason."""
        if self.latched():
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_suffix(".tmp")
        with temporary.open("w") as file:
            json.dump({"reason": reason}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, self._path)
        folder = os.open(self._path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)

    def clear(self) -> None:
        """Remove the record; the gate calls this at the end of the reset procedure only."""
        self._path.unlink(missing_ok=True)
