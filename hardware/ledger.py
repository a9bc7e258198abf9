"""The gate's current state, why it is there, and the record of every change."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

from hardware.estop import EStopLatch, Event, Mode, Outcome, transition
from hardware.events import EventLog
from hardware.interlocks import Rule, Severity, Violation
from hardware.types import Clock, RefusedError


class Ledger:
    """Applies the transition table and writes down what it did; latches emergency stops on the disk."""

    def __init__(self, events: EventLog, latch: EStopLatch, clock: Clock) -> None:
        self.events, self.latch, self._clock = events, latch, clock
        self.mode = Mode.ESTOP if latch.latched() else Mode.DISCONNECTED
        self.cause: Violation | None = None
        """Why the gate left RUNNING."""
        self.counts: Counter[str] = Counter()
        """ticks, corrected_ticks, rejected_chunks, and entries into hold, fault and estop."""
        self.rules = 0
        """Bit mask of the interlocks that spoke since it was last zeroed."""
        self.violated_s = self.changed_s = clock.now_s()
        self._reported: set[Rule] = set()
        if self.mode is Mode.ESTOP:
            self.write("latched", reason=latch.reason())

    def look(self, event: Event) -> Outcome:
        """Where ``event`` would lead."""
        return transition(self.mode, event)

    def refusal(self, what: str) -> RefusedError:
        """The error that says why ``what`` can't be done now, and what comes first."""
        why = f": {self.cause.rule.name}, {self.cause.detail}" if self.cause else ""
        if self.mode is Mode.ESTOP:
            why = (
                f": latched because of {self.latch.reason()!r}; release the button, look, and reset with a typed reason"
            )
        return RefusedError(f"{what} is refused in {self.mode.name}{why}")

    def violate(self, violation: Violation, event: Event | None = None) -> None:
        """Follow the table for a broken rule; a repeated rule is written once per state."""
        self.rules |= 1 << violation.rule
        if violation.severity is Severity.DROP:
            self._note(violation)
            return
        self.violated_s = self._clock.now_s()
        event = event or (Event.FAULT if violation.severity is Severity.FAULT else Event.SOFT_VIOLATION)
        outcome = transition(self.mode, event)
        if outcome.mode is self.mode:
            self._note(violation)
            return
        self.enter(outcome.mode, violation)
        if outcome.mode is Mode.ESTOP:
            # The drives hold the last goal, at most one tick ahead, while the disk is written.
            self.attempt("latch", lambda: self.latch.latch(violation.detail))

    def enter(self, mode: Mode, cause: Violation | None = None) -> None:
        """Change the state."""
        before, self.mode, self.cause = self.mode, mode, cause
        if mode is before:
            return
        self.changed_s = self._clock.now_s()
        self._reported = set() if cause is None else {cause.rule}
        if mode in {Mode.HOLD, Mode.FAULT, Mode.ESTOP}:
            self.counts[mode.name.lower()] += 1
        rule, detail = (None, "") if cause is None else (cause.rule, cause.detail)
        self.write("mode", before=before, mode=mode, rule=rule, detail=detail)

    def _note(self, violation: Violation) -> None:
        if violation.rule not in self._reported:
            self._reported.add(violation.rule)
            self.write("violation", mode=self.mode, rule=violation.rule, detail=violation.detail)

    def attempt(self, what: str, action: Callable[[], None]) -> None:
        """Do what can be done on the way down; an error is written, not raised."""
        try:
            action()
        except Exception as error:  # noqa: BLE001 - the way down must go on
            self.write("error", what=what, detail=repr(error))

    def write(self, kind: str, **fields: Any) -> None:
        """One event, now."""
        self.events.write(self._clock.now_s(), kind, **fields)
