"""The safety gate: the only caller of ``Arm.send``.

Once per tick: read → admit → check → interpolate the chunk → limit → final check → send → record. A check that can't
run counts as violated. The gate owns the link; it lives in one thread and is told the time by its clock.

Nothing here is a certified safety function: the red button, the vendor's own limits and the fence come first.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from hardware.arm import Arm
from hardware.estop import EStopLatch, Event, Mode
from hardware.events import EventLog, TickRing
from hardware.gate_config import GateConfig
from hardware.interlocks import ChunkMonitor, Rule, Severity, StateMonitor, Violation
from hardware.ledger import Ledger
from hardware.power import ArmPower
from hardware.shaper import CommandShaper
from hardware.types import (
    ActionChunk,
    ArmCommand,
    ArmState,
    Array,
    Clock,
    CommunicationError,
    ControlMode,
    HardwareError,
    RefusedError,
    Source,
    StaleStateError,
    StopKind,
)
from hardware.watchdog import RateCounter

_DRIVEN = frozenset({Mode.RUNNING, Mode.HOLD, Mode.FAULT, Mode.ESTOP})
_SOURCES, _COMMAND_LIFE_S = tuple(Source), 0.1


class TickReport(NamedTuple):
    """What one tick did. sent [n]: what the arm was told, None where nothing was sent."""

    t_s: float
    mode: Mode
    sent: Array | None
    corrected: bool
    """The gate changed what the chunk asked for."""


class SafetyGate:
    """Turns chunks into commands that satisfy every limit, or stops the arm. There is no way to switch it off."""

    def __init__(
        self,
        arm: Arm,
        config: GateConfig,
        *,
        clock: Clock,
        latch: EStopLatch,
        events: EventLog | None = None,
        estop_pressed: Callable[[], bool] | None = None,
    ) -> None:
        """latch: keeps an emergency stop over restarts. estop_pressed: an input read every tick; raising means yes."""
        self.config, self.spec = config, arm.spec
        self._arm, self._clock, self._estop_pressed = arm, clock, estop_pressed
        latch.check_writable()
        self.ledger = Ledger(events or EventLog(), latch, clock)
        self._power = ArmPower(arm, self.ledger, clock=clock, tick_s=config.tick_s, read=self._healthy_read)
        self.shaper = CommandShaper(arm.spec, config)
        self.monitor = StateMonitor(arm.spec, config)
        self.chunks = ChunkMonitor(arm.spec, config, self.shaper.speed)
        self.ring = TickRing(arm.spec.num_joints)
        self._connected = False
        # Opened by enable alone, so a limiter that doesn't know the pose can't reach the drives.
        self._output_open = False
        self._sample_checks = (
            self.monitor.vendor_fault,
            self.monitor.stale_observation,
            self.monitor.measured_position,
        )
        self._motion_checks = (
            self.monitor.torque_dropped,
            self.monitor.echo_mismatch,
            self.monitor.tracking,
            self.monitor.frozen,
        )
        self._chunk_checks = (self.chunks.finite_shape, self.chunks.order_and_time, self.chunks.jump)
        self._resumes = RateCounter(3, 60.0)
        self._seq = 0
        self._chunk: ActionChunk | None = None
        self._accepted_s = 0.0
        self._last_tick_s: float | None = None
        self._begin_waiting()

    def _begin_waiting(self) -> None:
        """Start over: no chunk, full patience, ramp-in."""
        self._chunk = None
        self._waiting_since_s = self._clock.now_s()
        self._last_tick_s = None
        self.shaper.restart_ramp()
        self.chunks.reset()

    @property
    def mode(self) -> Mode:
        """State of the gate."""
        return self.ledger.mode

    @property
    def state(self) -> ArmState | None:
        """The newest admitted sample."""
        return self.monitor.state

    @property
    def at_rest(self) -> bool:
        """Whether the reference stands still."""
        return self.shaper.at_rest

    def connect(self) -> ArmState:
        """Open the link without energising. In ESTOP the state stays latched."""
        outcome = self.ledger.look(Event.CONNECT)
        if not outcome.accepted:
            raise self.ledger.refusal("connect")
        state = self._arm.connect()
        self._connected = True
        self.monitor.reset()
        self._power.rearm()
        self.ledger.enter(outcome.mode, self.ledger.cause)
        return state

    def enable(self, by: Source = Source.HUMAN) -> None:
        """Torque on at the measured pose, ready for a chunk. RefusedError names what stands against it."""
        outcome = self.ledger.look(Event.ENABLE)
        if not outcome.accepted or by is Source.POLICY:
            raise self.ledger.refusal(f"enable by {by.value}")
        if self.ledger.events.write_errors:
            raise RefusedError("enable is refused: the event log could not be written; free disk space and start again")
        self._healthy_read("enable")
        try:
            state = self._power.enable()
        except Exception as error:
            self._power.stop(StopKind.HOLD)
            self.ledger.attempt("disable", self._arm.disable)
            self._violate(Violation(Rule.COMMUNICATION, Severity.FAULT, f"enable failed: {error}"))
            raise
        self.shaper.seed(state.position_rad, state.gripper_m)
        self.monitor.motion.clear()
        self._begin_waiting()
        self._output_open = True
        self.ledger.enter(outcome.mode)

    def hold(self, reason: str) -> None:
        """Brake and keep the pose (an operator's or a program's stop)."""
        self._violate(Violation(Rule.OPERATOR, Severity.HOLD, reason))

    def estop(self, reason: str) -> None:
        """Latch the emergency stop, from any state: brake along the limits, then power off (brakes) or hold."""
        self._violate(Violation(Rule.ESTOP, Severity.FAULT, reason), Event.ESTOP)

    def reset(self, reason: str, by: Source = Source.HUMAN) -> None:
        """Leave HOLD (quiet for ``clear_s``), FAULT or ESTOP (cause gone, fresh healthy read, typed reason).

        Torque that doesn't go off raises, and the state, latch included, stays.
        """
        outcome = self.ledger.look(Event.RESET)
        if not outcome.accepted or by is Source.POLICY:
            raise self.ledger.refusal(f"reset by {by.value}")
        if self.mode is Mode.HOLD:
            quiet_s = self._clock.now_s() - self.ledger.violated_s
            if quiet_s < self.config.clear_s:
                raise RefusedError(f"reset is refused: quiet for {quiet_s:.2f} s, {self.config.clear_s} s are needed")
        else:
            self._check_reset(reason)
            self._output_open = False
            self._power.release()
        self.ledger.write("reset", mode=self.mode, by=by, reason=reason)
        if self.mode is Mode.ESTOP:
            self.ledger.latch.clear()
        self._begin_waiting()
        self.ledger.enter(outcome.mode)

    def _check_reset(self, reason: str) -> None:
        if len(reason.strip()) < 3:
            raise RefusedError(f"reset from {self.mode.name} needs a reason in words, got {reason!r}")
        if self._pressed():
            raise RefusedError("reset is refused: the emergency stop is still pressed")
        self.monitor.reset()
        self._healthy_read("reset")

    def disconnect(self) -> None:
        """Stop what moves, torque off, close the link; callable from any state, twice. ESTOP stays latched."""
        if self.mode in _DRIVEN and self._connected:
            self._power.stop(StopKind.CONTROLLED)
        self._output_open = False
        if self._connected:
            self.ledger.attempt("disconnect", self._arm.disconnect)
        self._connected = False
        self.ledger.enter(self.ledger.look(Event.DISCONNECT).mode, self.ledger.cause)

    def _healthy_read(self, what: str) -> ArmState:
        """One fresh sample without faults inside the limits, else RefusedError."""
        try:
            state = self._arm.read()
        except HardwareError as error:
            raise RefusedError(f"{what} is refused: no fresh sample ({error})") from error
        violation = self.monitor.admit(state)
        for check in self._sample_checks:
            violation = violation or check(state, self._clock.now_s())
        if violation is not None:
            raise RefusedError(f"{what} is refused by interlock {violation.rule.name}: {violation.detail}")
        return state

    def submit(self, chunk: ActionChunk) -> bool:
        """Offer a chunk. False: it was not taken, and the event log says why."""
        now_s = self._clock.now_s()
        resume = self._may_resume(now_s)
        if not self.ledger.look(Event.CHUNK).accepted and not resume:
            return self._reject(chunk, f"chunks are refused in {self.mode.name}")
        violation = self._judge(chunk, now_s, starts=resume or not self.shaper.moved)
        if violation is not None:
            if violation.severity > Severity.DROP:
                self._violate(violation)
            return self._reject(chunk, f"{violation.rule.name}: {violation.detail}")
        if resume:
            self._resumes.add(now_s)
            self._begin_waiting()
            self.ledger.enter(Mode.RUNNING)
        self.chunks.accept(chunk)
        self._chunk, self._accepted_s = chunk, now_s
        self.shaper.begin_ramp(now_s)
        return True

    def due(self) -> tuple[Array, float]:
        """Joints [n] and opening that the running chunk asks for at this moment; else the last targets."""
        return self.shaper.due(self._chunk, self._clock.now_s())

    def _may_resume(self, now_s: float) -> bool:
        cause = self.ledger.cause
        return (
            self.config.auto_resume
            and self.mode is Mode.HOLD
            and cause is not None
            and cause.rule is Rule.STALE_COMMAND
            and now_s - self.ledger.violated_s >= self.config.tick_s
            and self.at_rest
            and not self._resumes.full(now_s)
        )

    def _judge(self, chunk: ActionChunk, now_s: float, *, starts: bool) -> Violation | None:
        checks = (*self._chunk_checks, self.chunks.first_row) if starts else self._chunk_checks
        try:
            for check in checks:
                violation = check(chunk, self.shaper.band, now_s)
                if violation is not None:
                    return violation
        except Exception as error:  # noqa: BLE001 - a check that can't run counts as violated
            return Violation(Rule.INTERNAL, Severity.HOLD, f"chunk check failed: {error!r}")
        return None

    def _reject(self, chunk: ActionChunk, reason: str) -> bool:
        self.ledger.counts["rejected_chunks"] += 1
        self.ledger.write("chunk_rejected", seq=chunk.seq, reason=reason)
        return False

    def tick(self) -> TickReport:
        """One control period. Never raises for what the arm or a check does."""
        now_s = self._clock.now_s()
        if not self._connected:
            return TickReport(now_s, self.mode, None, False)
        sent, corrected = None, False
        self.ledger.rules = 0
        for violation in self._observe(now_s):
            self._violate(violation)
        if self.mode is not Mode.ESTOP:
            self._power.rearm()
        elif not self._output_open or self.at_rest or now_s - self.ledger.changed_s >= self.config.estop_brake_s:
            self._output_open = False
            self._power.stop_emergency(self.state)
        if self.mode in _DRIVEN and self._output_open:
            try:
                sent, corrected = self._drive(now_s)
            except CommunicationError as error:
                self._lose_output(Violation(Rule.COMMUNICATION, Severity.FAULT, f"write failed: {error}"))
            except Exception as error:  # noqa: BLE001 - nothing may pass unlimited
                self._lose_output(Violation(Rule.INTERNAL, Severity.FAULT, f"command path failed: {error!r}"))
        self.ledger.counts["corrected_ticks"] += corrected
        self._record(now_s, sent)
        self._last_tick_s = now_s
        return TickReport(now_s, self.mode, sent, corrected)

    def _observe(self, now_s: float) -> list[Violation]:
        """Read and run every check; exceptions become violations."""
        found: list[Violation] = []
        if self._pressed():
            self.estop("emergency stop input")
        pause_s = 0.0 if self._last_tick_s is None else now_s - self._last_tick_s
        if pause_s > self.config.stale_fault_s:
            found.append(Violation(Rule.OVERRUN, Severity.HOLD, f"the loop paused for {pause_s * 1e3:.0f} ms"))
        found += self._guard(self._read)
        state = self.monitor.state
        if state is None:
            return found
        now_s = self._clock.now_s()  # reading takes time: a sample may be younger than the tick
        checks = self._sample_checks
        if self.mode in {Mode.RUNNING, Mode.HOLD}:
            checks = (*checks, *self._motion_checks)
        for check in checks:
            found += self._guard(lambda check=check: check(state, now_s))
        if self.mode is Mode.RUNNING:
            found += self._guard(lambda: self._stale_command(now_s))
        return found

    def _guard(self, check: Callable[[], Violation | None]) -> list[Violation]:
        try:
            violation = check()
        except Exception as error:  # noqa: BLE001 - a check that can't run counts as violated
            violation = Violation(Rule.INTERNAL, Severity.HOLD, f"check failed: {error!r}")
        return [] if violation is None else [violation]

    def _read(self) -> Violation | None:
        try:
            sample = self._arm.read()
        except (StaleStateError, CommunicationError) as error:
            if not self.monitor.missed.update(True):
                return None
            if self._output_open:
                self._output_open = False
                self._power.stop(StopKind.CONTROLLED)
            return Violation(
                Rule.COMMUNICATION, Severity.FAULT, f"no sample in {self.monitor.missed.count} reads: {error}"
            )
        self.monitor.missed.reset()
        return self.monitor.admit(sample)

    def _stale_command(self, now_s: float) -> Violation | None:
        """15: nothing newer than the open-loop limit allows."""
        chunk = self._chunk
        if chunk is None:
            if now_s - self._waiting_since_s <= self.config.first_chunk_s:
                return None
            return Violation(Rule.STALE_COMMAND, Severity.HOLD, f"no chunk within {self.config.first_chunk_s} s")
        end_s = min(chunk.t_end_s, min(chunk.t0_s, self._accepted_s) + self.config.open_loop_s)
        if now_s <= end_s:
            return None
        return Violation(Rule.STALE_COMMAND, Severity.HOLD, f"chunk {chunk.seq} ran out {now_s - end_s:.3f} s ago")

    def _drive(self, now_s: float) -> tuple[Array | None, bool]:
        """Limit and send one command; braking in every state but RUNNING."""
        chunk = self._chunk if self.mode is Mode.RUNNING else None
        measured = None if self.state is None else self.state.position_rad
        shaped = self.shaper.brake() if chunk is None else self.shaper.follow(chunk, now_s, measured)
        command = ArmCommand(
            seq=self._seq,
            t_created_s=now_s,
            t_valid_until_s=now_s + _COMMAND_LIFE_S,
            mode=ControlMode.JOINT_POSITION,
            values=shaped.joints,
            gripper_m=shaped.gripper_m,
            source=Source.GATE if chunk is None else chunk.source,
        )
        self._seq += 1
        # What the drives will really do, after their own rounding, is what the echo must show.
        self.monitor.motion.add(self._arm.send(command).values)
        self.ledger.rules |= shaped.rules
        return command.values, shaped.rules != 0

    def _violate(self, violation: Violation, event: Event | None = None) -> None:
        self.ledger.violate(violation, event)
        if self.mode is not Mode.RUNNING:
            self._chunk = None

    def _lose_output(self, violation: Violation) -> None:
        """The command path can't be trusted: let the arm stop itself and send nothing more."""
        self._output_open = False
        self._power.stop(StopKind.CONTROLLED)
        self._violate(violation)

    def _pressed(self) -> bool:
        try:
            return self._estop_pressed is not None and bool(self._estop_pressed())
        except Exception:  # noqa: BLE001 - an input that can't be read counts as pressed
            return True

    def _record(self, now_s: float, sent: Array | None) -> None:
        self.ledger.counts["ticks"] += 1
        shaper, tick_s = self.shaper, self.config.tick_s
        record = self.ring.slot(now_s, self.monitor.state)
        record["mode"], record["rules"], record["scale"] = self.mode, self.ledger.rules, shaper.scale(now_s)
        record["lateness_s"] = 0.0 if self._last_tick_s is None else now_s - self._last_tick_s - tick_s
        record["source"] = _SOURCES.index(Source.GATE if self._chunk is None else self._chunk.source)
        record["requested_rad"], record["gripper_requested_m"] = shaper.target, shaper.gripper_target_m
        record["sent_rad"], record["gripper_sent_m"] = (np.nan if sent is None else sent), shaper.gripper_m
