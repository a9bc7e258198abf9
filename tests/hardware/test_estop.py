import json

import pytest

from hardware.estop import TRANSITIONS, EStopLatch, Event, Mode, transition
from hardware.interlocks import Rule, Severity, Violation
from hardware.types import CommunicationError, HardwareError, RefusedError, Source
from tests.hardware.rig import Rig, moving


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


@pytest.mark.parametrize("lose", ["link", "command_path"])
@pytest.mark.parametrize("brakes", [True, False])
def test_estop_reaches_an_arm_whose_output_was_closed_before(tmp_path, monkeypatch, lose, brakes):
    rig = moving(tmp_path, spec={"has_brakes": brakes})
    if lose == "link":
        rig.arm.faults.drop_replies = 12
        rig.tick(12)
    else:
        with monkeypatch.context() as patch:
            patch.setattr(rig.gate.shaper, "follow", None)
            rig.gate.submit(rig.sweep())
            rig.tick()
    assert rig.gate.mode is Mode.FAULT and not rig.gate._output_open
    rig.arm.faults.drop_replies = 0
    kinds, stop = [], rig.arm.stop
    monkeypatch.setattr(rig.arm, "stop", lambda kind: (kinds.append(kind.name), stop(kind)))
    rig.gate.estop("button")
    rig.tick(3)
    assert kinds[0] == ("POWER_OFF" if brakes else "HOLD")
    assert rig.arm.read().enabled.any() != brakes
    asked = len(kinds)
    rig.settle()
    assert len(kinds) == asked  # not for ever


def test_estop_whose_stop_fails_is_asked_again_until_the_torque_is_off(tmp_path, monkeypatch):
    rig = moving(tmp_path, spec={"has_brakes": True})
    failures, stop = [], rig.arm.stop

    def unreliable(kind):
        if len(failures) < 5:
            failures.append(kind)
            raise CommunicationError("no answer")
        stop(kind)

    monkeypatch.setattr(rig.arm, "stop", unreliable)
    rig.gate.estop("button")
    rig.settle(0.6)
    assert len(failures) == 5
    assert not rig.arm.read().enabled.any()
    assert [event["what"] for event in rig.kinds("error")] == ["stop"]  # written once, not every tick


def test_estop_whose_stop_gets_lost_silently_is_asked_again(tmp_path, monkeypatch):
    rig = moving(tmp_path, spec={"has_brakes": True})
    with monkeypatch.context() as patch:
        patch.setattr(rig.arm, "stop", lambda kind: None)
        rig.gate.estop("button")
        rig.settle(0.5)
        assert rig.arm.read().enabled.all()
    rig.tick(2)
    assert not rig.arm.read().enabled.any()


@pytest.mark.parametrize("state", ["fault", "estop"])
@pytest.mark.parametrize("how", ["raises", "does nothing"])
def test_reset_with_torque_that_stays_on_raises_and_stays(tmp_path, monkeypatch, state, how):
    rig = Rig(tmp_path)
    if state == "estop":
        rig.gate.estop("button")
    else:
        rig.gate._lose_output(Violation(Rule.INTERNAL, Severity.FAULT, "test"))
    rig.settle(0.2)
    before = rig.gate.mode
    with monkeypatch.context() as patch:
        if how == "raises":
            patch.setattr(rig.arm, "disable", lambda: (_ for _ in ()).throw(HardwareError("joint 1 still energised")))
        else:
            patch.setattr(rig.arm, "disable", lambda: None)
        with pytest.raises(HardwareError, match="still energised" if how == "raises" else "torque is still on"):
            rig.gate.reset("looked at the cell")
    assert rig.gate.mode is before
    assert rig.latch.latched() == (state == "estop")
    rig.gate.reset("looked at the cell")
    assert rig.gate.mode is Mode.IDLE and not rig.latch.latched()
    assert not rig.arm.read().enabled.any()


def test_a_latch_that_cannot_be_written_is_refused_before_anything_moves(tmp_path):
    (tmp_path / "file").write_text("not a folder")
    rig = Rig(tmp_path, enable=False)
    rig.latch = EStopLatch(tmp_path / "file" / "estop.json")
    with pytest.raises(HardwareError, match="can't be latched"):
        rig.new_gate()
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
