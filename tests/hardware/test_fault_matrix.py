"""Rows of the fault matrix that a simulated arm under a manual clock can show. A row is named by its number."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from hardware.estop import Mode
from hardware.gate_config import GateConfig
from hardware.interlocks import Rule
from hardware.types import ArmFault, FaultReport, RefusedError, Source
from tests.hardware.rig import N, Rig, assert_stops, moving


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_01_not_finite(tmp_path, value):
    rig = moving(tmp_path)
    chunk = rig.sweep()
    chunk.values[3, 1] = value
    assert not rig.gate.submit(chunk)
    assert_stops(rig, Mode.HOLD, Rule.FINITE_SHAPE)


def test_01_not_finite_gripper(tmp_path):
    rig = moving(tmp_path)
    assert not rig.gate.submit(rig.chunk(np.zeros((4, N)), gripper_m=np.nan))
    assert_stops(rig, Mode.HOLD, Rule.FINITE_SHAPE)


@pytest.mark.parametrize(
    "values",
    [np.zeros((4, N)), np.zeros((4, N + 2)), np.zeros((0, N + 1)), np.zeros(N + 1), np.zeros((4, N + 1), dtype=int)],
)
def test_02_wrong_shape_or_dtype(tmp_path, values):
    rig = moving(tmp_path)
    assert not rig.gate.submit(replace(rig.sweep(), values=values))
    assert_stops(rig, Mode.HOLD, Rule.FINITE_SHAPE)


def test_03_degrees_to_a_radian_arm(tmp_path):
    rig = moving(tmp_path)
    chunk = rig.sweep()
    chunk.values[:, :N] *= 57.3
    assert not rig.gate.submit(chunk)
    assert_stops(rig, Mode.HOLD, Rule.COMMAND_JUMP)


@pytest.mark.parametrize("row", [0, 6])
def test_04_jump(tmp_path, row):
    rig = moving(tmp_path)
    chunk = rig.sweep()
    chunk.values[row:, 2] += 1.5
    assert not rig.gate.submit(chunk)
    assert_stops(rig, Mode.HOLD, Rule.COMMAND_JUMP)


def test_04_slow_drift_out_of_range_is_clamped_at_the_margin(tmp_path):
    rig = Rig(tmp_path)
    rig.drive(4.8, speed_rad_s=0.5)
    assert rig.gate.mode is Mode.RUNNING
    assert rig.gate.shaper.target[0] > 2.0
    assert rig.gate.shaper.output[0] == pytest.approx(2.0 - rig.config.position_margin_rad)
    assert rig.gate.ring.last(1)["rules"][0] & (1 << Rule.JOINT_POSITION)


def test_05_old_repeated_and_out_of_order_chunks_are_dropped_and_the_third_holds(tmp_path):
    rig = moving(tmp_path)
    good = rig.sweep()
    assert rig.gate.submit(good)
    rig.tick()
    assert not rig.gate.submit(good)
    assert not rig.gate.submit(replace(rig.sweep(), t_obs_s=rig.clock.now_s() - 0.6))
    assert rig.tick().mode is Mode.RUNNING
    assert not rig.gate.submit(replace(rig.sweep(), t0_s=good.t0_s - 1.0))
    assert_stops(rig, Mode.HOLD, Rule.CHUNK_TIME)


def test_05_an_observation_from_the_future_is_dropped(tmp_path):
    rig = moving(tmp_path)
    assert not rig.gate.submit(replace(rig.sweep(), t_obs_s=rig.clock.now_s() + 0.1))
    assert rig.gate.mode is Mode.RUNNING


@pytest.mark.parametrize("off_s", [1000.0, 0.5, -0.45])
def test_05_a_chunk_that_is_not_due_about_now_is_dropped(tmp_path, off_s):
    rig = moving(tmp_path)
    rig.gate.chunks.reset()
    assert not rig.gate.submit(replace(rig.sweep(rows=40), t0_s=rig.clock.now_s() + off_s))
    assert "allowed 0.4 s" in rig.kinds("chunk_rejected")[-1]["reason"]
    assert rig.gate.mode is Mode.RUNNING


def test_06_a_chunk_for_later_does_not_silence_the_watchdog(tmp_path):
    rig = moving(tmp_path)
    assert rig.gate.submit(replace(rig.sweep(rows=40), t0_s=rig.clock.now_s() + 0.3))
    rig.tick(40)
    assert rig.gate.mode is Mode.RUNNING
    assert_stops(rig, Mode.HOLD, Rule.STALE_COMMAND, ticks=2)


@pytest.mark.parametrize("dt_s", [100.0, 0.41, 0.0, -0.05])
def test_04_a_long_step_does_not_excuse_a_jump(tmp_path, dt_s):
    rig = moving(tmp_path)
    assert not rig.gate.submit(replace(rig.sweep(), dt_s=dt_s))
    assert "dt_s" in rig.kinds("chunk_rejected")[-1]["reason"]
    assert_stops(rig, Mode.HOLD, Rule.FINITE_SHAPE)


def test_06_silent_policy_holds_after_the_open_loop_limit(tmp_path):
    rig = moving(tmp_path)
    assert rig.gate.submit(rig.sweep(rows=40))
    rig.tick(40)
    assert rig.gate.mode is Mode.RUNNING
    assert_stops(rig, Mode.HOLD, Rule.STALE_COMMAND, ticks=2)


def test_06_no_first_chunk(tmp_path):
    rig = Rig(tmp_path, GateConfig(first_chunk_s=0.5))
    rig.tick(50)
    assert rig.gate.mode is Mode.RUNNING
    assert_stops(rig, Mode.HOLD, Rule.STALE_COMMAND, ticks=2)


def test_09_pauses_of_the_loop(tmp_path):
    rig = moving(tmp_path)
    assert rig.gate.submit(rig.sweep())
    rig.clock.advance(0.05)
    assert rig.tick().mode is Mode.RUNNING
    rig.clock.advance(0.5)
    rig.tick()
    # The drives' own watchdog has stopped the arm meanwhile, which outranks the pause.
    assert rig.gate.mode is Mode.FAULT
    assert {event["rule"] for event in rig.kinds("mode")[-2:]} == {"OVERRUN", "VENDOR_FAULT"}
    rig.settle()
    assert rig.speed() < 0.01


def test_13_reset_needs_quiet_and_an_operator(tmp_path):
    rig = moving(tmp_path)
    rig.gate.hold("look")
    rig.tick(10)
    with pytest.raises(RefusedError, match="quiet for"):
        rig.gate.reset("go on")
    with pytest.raises(RefusedError, match="policy"):
        rig.gate.reset("go on", by=Source.POLICY)
    rig.settle(0.6)
    rig.gate.reset("go on")
    assert rig.gate.mode is Mode.RUNNING
    scale = rig.gate.shaper.scale(rig.clock.now_s())
    assert scale == rig.config.ramp_start_scale


def test_17_link_cut_holds_then_faults_and_the_arm_stops_itself(tmp_path):
    rig = moving(tmp_path)
    assert rig.gate.submit(rig.sweep())
    rig.arm.faults.link_cut = True
    rig.tick(2)
    assert rig.gate.mode is Mode.FAULT  # the write failed
    assert rig.gate.ledger.cause.rule is Rule.COMMUNICATION
    rig.settle(1.0)
    assert rig.speed() < 0.01
    assert rig.arm.vendor_mode == "watchdog"
    rig.arm.faults.link_cut = False
    rig.tick(5)
    assert rig.gate.mode is Mode.FAULT and rig.reports[-1].sent is None
    rig.gate.disconnect()
    assert rig.gate.mode is Mode.DISCONNECTED


def test_15_lost_replies(tmp_path):
    rig = moving(tmp_path)
    assert rig.gate.submit(rig.sweep())
    rig.arm.faults.drop_replies = 1
    rig.tick(2)
    assert rig.gate.mode is Mode.RUNNING
    rig.arm.faults.drop_replies = 3
    assert_stops(rig, Mode.HOLD, Rule.STALE_OBSERVATION, ticks=3)


def test_15_mute_link_ends_in_fault_with_nothing_more_sent(tmp_path):
    rig = moving(tmp_path)
    rig.arm.faults.drop_replies = 10_000
    rig.tick(12)
    assert rig.gate.mode is Mode.FAULT
    assert not rig.gate._output_open
    rig.settle()
    assert rig.speed() < 0.01


def test_16_frozen_stream(tmp_path):
    rig = moving(tmp_path)
    assert rig.gate.submit(rig.sweep())
    rig.arm.faults.frozen_stream = True
    rig.tick(4)
    assert rig.gate.mode is Mode.HOLD
    assert rig.gate.ledger.cause.rule is Rule.STALE_OBSERVATION
    rig.tick(10)
    assert rig.gate.mode is Mode.FAULT


@pytest.mark.parametrize(("ahead_s", "mode"), [(0.009, Mode.RUNNING), (0.03, Mode.HOLD), (0.2, Mode.FAULT)])
def test_16_samples_from_the_future(tmp_path, monkeypatch, ahead_s, mode):
    rig = moving(tmp_path)
    assert rig.gate.submit(rig.sweep())
    read = rig.arm.read

    def early():
        state = read()
        return replace(state, t_sample_s=state.t_sample_s + ahead_s)

    monkeypatch.setattr(rig.arm, "read", early)
    rig.tick()
    assert rig.gate.mode is mode
    if mode is not Mode.RUNNING:
        assert rig.gate.ledger.cause.rule is Rule.STALE_OBSERVATION


def test_19_torque_dropped(tmp_path):
    rig = moving(tmp_path)
    rig.arm.faults.torque_lost.add(1)
    rig.tick()
    assert rig.gate.mode is Mode.FAULT
    assert rig.gate.ledger.cause.rule is Rule.TORQUE_ECHO
    with pytest.raises(RefusedError):
        rig.gate.enable()


def test_20_vendor_fault_names_joint_and_raw_bits(tmp_path):
    rig = moving(tmp_path)
    rig.arm.faults.reported = (FaultReport(ArmFault.OVERHEAT, 2, 0x24),)
    assert_stops(rig, Mode.FAULT, Rule.VENDOR_FAULT)
    assert "overheat joint 2 raw 0x24" in rig.kinds("mode")[-1]["detail"]
    with pytest.raises(RefusedError, match="VENDOR_FAULT"):
        rig.gate.reset("it is cool again")
    rig.arm.faults.reported = ()
    rig.gate.reset("it is cool again")
    assert rig.gate.mode is Mode.IDLE


def test_22_lost_writes(tmp_path):
    rig = moving(tmp_path, spec={"vendor_watchdog_s": None})
    assert rig.gate.submit(rig.sweep())
    rig.arm.faults.lose_writes = True
    rig.tick(6)
    assert rig.gate.mode is Mode.FAULT
    assert rig.gate.ledger.cause.rule is Rule.TORQUE_ECHO


def test_23_no_motion_at_enable(tmp_path):
    rig = Rig(tmp_path, enable=False)
    rig.gate.connect()
    rig.gate.disconnect()
    qpos = np.zeros(N + 2)
    qpos[0] = 1.0
    rig.arm.reset_scene(qpos)
    rig.gate.connect()
    rig.gate.enable()
    rig.settle(0.3)
    assert rig.gate.state.position_rad[0] == pytest.approx(1.0, abs=1e-6)


def test_26_stuck_encoder_holds(tmp_path):
    rig = moving(tmp_path)
    frozen = rig.gate.state.position_rad
    rig.arm.faults.stuck = {joint: float(frozen[joint]) for joint in range(N)}
    rig.drive(0.4)
    assert rig.gate.mode is Mode.HOLD
    assert rig.gate.ledger.cause.rule in {Rule.FROZEN, Rule.TRACKING}


def test_26_one_stuck_joint_shows_as_tracking_error(tmp_path):
    rig = moving(tmp_path)
    rig.arm.faults.stuck = {0: float(rig.gate.state.position_rad[0])}
    rig.drive(1.2, joint=(0, 1))
    assert rig.gate.mode is Mode.HOLD
    assert rig.gate.ledger.cause.rule is Rule.TRACKING


def test_26_one_glitch_is_dropped_and_two_fault(tmp_path):
    rig = moving(tmp_path)
    assert rig.gate.submit(rig.sweep())
    rig.arm.faults.glitch = {1: 0.4}
    rig.tick()
    assert rig.gate.mode is Mode.RUNNING
    assert abs(rig.gate.state.position_rad[1]) < 0.1
    for _ in range(2):
        rig.arm.faults.glitch = {1: np.nan}
        rig.tick()
    assert rig.gate.mode is Mode.FAULT
    assert rig.gate.ledger.cause.rule is Rule.PLAUSIBILITY


def test_33_refusals_name_the_state(tmp_path):
    rig = Rig(tmp_path, enable=False)
    with pytest.raises(RefusedError, match="DISCONNECTED"):
        rig.gate.enable()
    rig.gate.connect()
    assert not rig.gate.submit(rig.sweep())
    assert "IDLE" in rig.kinds("chunk_rejected")[-1]["reason"]
    assert rig.tick().sent is None
    with pytest.raises(RefusedError, match="policy"):
        rig.gate.enable(by=Source.POLICY)
    rig.arm.faults.reported = (FaultReport(ArmFault.VOLTAGE, -1, 1),)
    with pytest.raises(RefusedError, match="VENDOR_FAULT"):
        rig.gate.enable()
    rig.tick()
    assert rig.gate.mode is Mode.FAULT
    with pytest.raises(RefusedError, match="FAULT"):
        rig.gate.enable()


STATE_CHECKS = (
    "vendor_fault", "stale_observation", "measured_position", "torque_dropped", "echo_mismatch", "tracking", "frozen",
)  # fmt: skip


def boom(*_: object) -> None:
    raise ZeroDivisionError("broken check")


@pytest.mark.parametrize("name", STATE_CHECKS)
def test_43_a_state_check_that_raises_holds(tmp_path, name):
    rig = moving(tmp_path)
    assert rig.gate.submit(rig.sweep())
    for group in ("_sample_checks", "_motion_checks"):
        checks = tuple(boom if check.__name__ == name else check for check in getattr(rig.gate, group))
        setattr(rig.gate, group, checks)
    assert_stops(rig, Mode.HOLD, Rule.INTERNAL)
    with pytest.raises(RefusedError, match="quiet"):
        rig.gate.reset("go on")


@pytest.mark.parametrize("index", range(3))
def test_43_a_chunk_check_that_raises_rejects_and_holds(tmp_path, index):
    rig = moving(tmp_path)
    checks = list(rig.gate._chunk_checks)
    checks[index] = boom
    rig.gate._chunk_checks = tuple(checks)
    assert not rig.gate.submit(rig.sweep())
    assert_stops(rig, Mode.HOLD, Rule.INTERNAL)


@pytest.mark.parametrize(
    ("owner", "name", "mode"),
    [
        ("gate", "_stale_command", Mode.HOLD),
        ("gate", "_read", Mode.HOLD),
        ("monitor", "admit", Mode.HOLD),
        ("shaper", "follow", Mode.FAULT),
        ("shaper", "_final_check", Mode.FAULT),
        ("arm", "send", Mode.FAULT),
    ],
)
def test_43_the_tick_itself_fails_closed(tmp_path, monkeypatch, owner, name, mode):
    rig = moving(tmp_path)
    assert rig.gate.submit(rig.sweep())
    target = {"gate": rig.gate, "monitor": rig.gate.monitor, "shaper": rig.gate.shaper, "arm": rig.arm}[owner]
    monkeypatch.setattr(target, name, boom)
    assert rig.tick().mode is mode
    rig.settle()
    assert rig.speed() < 0.01


def test_43_a_limiter_that_returns_nonsense_is_caught_by_the_final_check(tmp_path, monkeypatch):
    rig = moving(tmp_path)
    assert rig.gate.submit(rig.sweep())
    monkeypatch.setattr(rig.gate.shaper._limiter, "step", lambda target, scale: rig.gate.shaper.output + 0.5)
    sent = []
    monkeypatch.setattr(rig.arm, "send", sent.append)
    assert rig.tick().mode is Mode.FAULT
    assert sent == []


def test_44_disconnect_twice_and_with_a_dead_link(tmp_path):
    rig = moving(tmp_path)
    rig.arm.faults.link_cut = True
    rig.gate.disconnect()
    rig.gate.disconnect()
    assert rig.gate.mode is Mode.DISCONNECTED


def test_every_interlock_is_documented_under_its_number():
    text = (Path(__file__).parents[2] / "docs" / "deployment.md").read_text()
    listed = dict(re.findall(r"^\| (\d+) \| ([A-Z_]+) \|", text, flags=re.MULTILINE))
    assert listed == {str(rule.value): rule.name for rule in Rule}
