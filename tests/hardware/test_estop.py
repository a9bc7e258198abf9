import json

import pytest

from hardware.estop import TRANSITIONS, EStopLatch, Event, Mode, transition
from hardware.types import RefusedError, Source
from tests.hardware.rig import Rig


def test_every_pair_is_in_the_table_and_an_unknown_one_stops():
    assert len(TRANSITIONS) == len(Mode) * len(Event)
    assert transition(Mode.RUNNING, "surprise").mode is Mode.ESTOP  # type: ignore[arg-type]


def test_only_reset_leaves_estop():
    leaving = {event for event in Event if transition(Mode.ESTOP, event).mode is not Mode.ESTOP}
    assert leaving == {Event.RESET}


def test_latch_keeps_the_first_reason_and_an_unreadable_file_is_latched(tmp_path):
    latch = EStopLatch(tmp_path / "deep" / "estop.json")
    assert not latch.latched()
    latch.latch("first")
    latch.latch("second")
    assert latch.reason() == "first"
    latch.path.write_text("garbage")
    assert latch.latched() and latch.reason() == "unreadable record"


def test_estop_at_speed_brakes_within_its_time_and_sends_nothing_afterwards(tmp_path):
    rig = Rig(tmp_path)
    rig.drive(2.5)
    assert rig.speed() > 0.3
    rig.pressed = True
    assert rig.tick().mode is Mode.ESTOP
    assert json.loads(rig.latch.path.read_text())["reason"] == "emergency stop input"
    rig.settle(0.35)
    assert rig.reports[-1].sent is None
    rig.settle(0.5)
    assert rig.speed() < 0.01
    assert not rig.gate.submit(rig.sweep())


def test_estop_in_hold_and_pressed_twice_stays_latched(tmp_path):
    rig = Rig(tmp_path)
    rig.gate.hold("test")
    rig.tick()
    rig.gate.estop("first")
    rig.gate.estop("second")
    assert rig.gate.mode is Mode.ESTOP
    assert rig.latch.reason() == "first"
    assert rig.gate.ledger.counts["estop"] == 1


def test_estop_survives_a_restart_and_needs_the_whole_procedure(tmp_path):
    rig = Rig(tmp_path)
    rig.drive(0.5)
    rig.gate.estop("button")
    rig.settle()
    rig.gate.disconnect()
    assert rig.gate.mode is Mode.ESTOP

    gate = rig.gate = rig.new_gate()
    assert gate.mode is Mode.ESTOP
    with pytest.raises(RefusedError, match="latched because of 'button'"):
        gate.enable()
    with pytest.raises(RefusedError, match="no fresh sample"):
        rig.arm.faults.link_cut = True
        gate.reset("looked at the cell")
    rig.arm.faults.link_cut = False
    gate.connect()
    assert gate.mode is Mode.ESTOP
    assert rig.tick().sent is None
    with pytest.raises(RefusedError, match="policy"):
        gate.reset("please let me go on", by=Source.POLICY)
    with pytest.raises(RefusedError, match="reason in words"):
        gate.reset("  ")
    rig.pressed = True
    with pytest.raises(RefusedError, match="still pressed"):
        gate.reset("looked at the cell")
    rig.pressed = False
    gate.reset("looked at the cell")
    assert gate.mode is Mode.IDLE and not rig.latch.latched()
    gate.enable()
    assert gate.mode is Mode.RUNNING


def test_an_input_that_cannot_be_read_counts_as_pressed(tmp_path):
    rig = Rig(tmp_path)

    def broken() -> bool:
        raise OSError("gpio gone")

    rig.gate._estop_pressed = broken
    assert rig.tick().mode is Mode.ESTOP


def test_estop_of_a_disconnected_gate_latches(tmp_path):
    rig = Rig(tmp_path, enable=False)
    rig.gate.estop("before the start")
    assert rig.gate.mode is Mode.ESTOP and rig.latch.latched()
