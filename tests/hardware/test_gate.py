"""How the gate starts, moves, slows and refuses, beyond the rows of the fault matrix."""

import numpy as np
import pytest

from hardware.estop import Mode
from hardware.gate_config import GateConfig
from hardware.interlocks import Rule
from hardware.types import HardwareError, SpecError
from tests.hardware.rig import N, Rig, assert_stops, moving


def test_enable_that_fails_halfway_faults_and_releases(tmp_path, monkeypatch):
    rig = Rig(tmp_path, enable=False)
    rig.gate.connect()
    monkeypatch.setattr(rig.arm, "enable", lambda: (_ for _ in ()).throw(HardwareError("joint 2 does not answer")))
    with pytest.raises(HardwareError, match="joint 2"):
        rig.gate.enable()
    assert rig.gate.mode is Mode.FAULT
    assert rig.arm.vendor_mode == "disabled"


def test_measured_joint_beyond_its_limit_faults(tmp_path):
    rig = moving(tmp_path)
    rig.arm.faults.stuck = {0: 2.03}
    rig.gate.monitor._speed[:] = 1e3  # not what this row is about
    rig.tick()
    assert rig.gate.mode is Mode.FAULT
    assert rig.gate.ledger.cause.rule is Rule.JOINT_POSITION


def test_first_motion_must_start_at_the_arm(tmp_path):
    rig = Rig(tmp_path)
    assert not rig.gate.submit(rig.chunk(np.full((6, N), 0.12)))
    assert_stops(rig, Mode.HOLD, Rule.RAMP_IN)


def test_motion_begins_slowly(tmp_path):
    rig = Rig(tmp_path)
    rig.drive(0.3, speed_rad_s=1.4)
    assert 0.05 < rig.speed() < 0.1 + 1.4 * 0.3
    assert rig.gate.ledger.counts["corrected_ticks"] > 0


def test_a_late_policy_may_resume_three_times_a_minute_when_allowed(tmp_path):
    rig = Rig(tmp_path, GateConfig(auto_resume=True))
    for _ in range(3):
        assert rig.gate.submit(rig.sweep(0.1, rows=2))
        rig.settle(1.0)
        assert rig.gate.mode is Mode.HOLD
    assert rig.gate.submit(rig.sweep(0.1, rows=2))
    rig.settle(1.0)
    assert not rig.gate.submit(rig.sweep(0.1, rows=2))
    assert rig.gate.mode is Mode.HOLD


def test_a_resumed_motion_starts_at_the_arm_too(tmp_path):
    rig = Rig(tmp_path, GateConfig(auto_resume=True, jump_rad=0.5))
    assert rig.gate.submit(rig.sweep(0.1, rows=2))
    rig.settle(1.0)
    assert rig.gate.mode is Mode.HOLD
    assert not rig.gate.submit(rig.chunk(np.tile(rig.gate.shaper.output + 0.15, (6, 1))))
    assert rig.gate.mode is Mode.HOLD
    assert "RAMP_IN" in rig.kinds("chunk_rejected")[-1]["reason"]
    rig.settle(0.1)
    assert rig.gate.submit(rig.sweep(0.1))
    assert rig.gate.mode is Mode.RUNNING


def test_other_holds_never_resume_by_themselves(tmp_path):
    rig = Rig(tmp_path, GateConfig(auto_resume=True))
    rig.drive(0.5)
    rig.gate.hold("operator")
    rig.settle()
    assert not rig.gate.submit(rig.sweep())


@pytest.mark.parametrize("change", [{"jump_rad": 100.0}, {"tick_s": float("nan")}, {"open_loop_s": float("inf")}])
def test_no_setting_switches_an_interlock_off(change):
    with pytest.raises(SpecError, match="switched off"):
        GateConfig(**change)


def test_latencies_and_ticks_are_not_mistaken_for_faults(tmp_path):
    from sims.sim_arm import SimArmConfig

    rig = Rig(
        tmp_path,
        spec={"command_latency_s": 0.02, "state_latency_s": 0.02, "vendor_watchdog_s": 0.1},
        sim=SimArmConfig(tick_rad=0.00153, drop_rate=0.02, seed=3),
    )
    rig.drive(4.0, speed_rad_s=0.3)
    assert rig.gate.mode is Mode.RUNNING, rig.kinds("mode")


def test_gripper_opening_passes_through_clamped(tmp_path):
    rig = Rig(tmp_path)
    assert rig.gate.submit(rig.chunk(np.zeros((12, N)), gripper_m=0.5))
    rig.tick(1)
    assert rig.gate.shaper.gripper_m == pytest.approx(0.002)
    rig.tick(39)
    assert rig.gate.shaper.gripper_m == pytest.approx(0.08)
