"""Torque on and off, believed only where samples confirm it, and the stop that ends an emergency."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from hardware.arm import Arm
from hardware.ledger import Ledger
from hardware.types import ArmState, Clock, RefusedError, StopKind

_SWITCH_S: Final = 0.2
"""How long drives may take to show, beyond the arm's latency, that their torque was switched."""


class ArmPower:
    """Switches one arm. ``read`` gives one fresh, healthy sample or raises RefusedError; its argument names the act."""

    def __init__(
        self, arm: Arm, ledger: Ledger, *, clock: Clock, tick_s: float, read: Callable[[str], ArmState]
    ) -> None:
        self._arm, self._ledger, self._clock, self._tick_s, self._read = arm, ledger, clock, tick_s, read
        self._stop_taken = False
        self._failure = ""

    def enable(self) -> ArmState:
        """Torque on; the first sample that shows it on every joint."""
        self._arm.enable()
        return self._confirmed("enable", on=True)

    def release(self) -> None:
        """Torque off, confirmed by a sample where the arm measures it; raises what the arm raises, or RefusedError."""
        self._arm.disable()
        self._confirmed("reset", on=False)

    def _confirmed(self, what: str, *, on: bool) -> ArmState:
        """Samples may lag behind the switch by the arm's latency."""
        deadline_s = self._clock.now_s() + self._arm.spec.state_latency_s + _SWITCH_S
        while True:
            state = self._read(what)
            if state.enabled is None or (state.enabled == on).all():
                return state
            if self._clock.now_s() > deadline_s:
                joint = int(np.argmax(state.enabled != on))
                raise RefusedError(f"{what}: torque is {'off' if on else 'still on'} at joint {joint}")
            self._clock.sleep_until(self._clock.now_s() + self._tick_s)

    def stop(self, kind: StopKind) -> None:
        """Ask once; an error is written, not raised."""
        self._ledger.attempt("stop", lambda: self._arm.stop(kind))

    def rearm(self) -> None:
        """The next emergency asks the arm anew."""
        self._stop_taken, self._failure = False, ""

    def stop_emergency(self, state: ArmState | None) -> None:
        """Close the brakes, or hold where there are none: every tick until the arm took it, or has no torque.

        Where torque is measured, a cut counts once a sample shows it: a dead link may swallow the call.
        """
        cut = self._arm.spec.has_brakes
        if self._stop_taken:
            return
        try:
            self._arm.stop(StopKind.POWER_OFF if cut else StopKind.HOLD)
            taken = True
        except Exception as error:  # noqa: BLE001 - the way down must go on, and is tried again
            taken = False
            if repr(error) != self._failure:
                self._failure = repr(error)
                self._ledger.write("error", what="stop", detail=f"{error!r}; asked again every tick")
        measured = None if state is None else state.enabled
        if measured is not None and (cut or not taken):
            taken = not measured.any()
        self._stop_taken = taken
