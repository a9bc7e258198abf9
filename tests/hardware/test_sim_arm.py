import pickle

import numpy as np
import pytest

from hardware.arm import Arm, SceneArm
from hardware.clock import ManualClock
from hardware.estop import EStopLatch, Mode
from hardware.gate import SafetyGate
from hardware.gate_config import GateConfig
from hardware.types import (
    ActionChunk,
    ArmCommand,
    CommunicationError,
    ControlMode,
    RefusedError,
    Source,
    SpecError,
    StaleStateError,
    StopKind,
    frozen,
)
from sims.arm_model import FRANKA
from sims.sim_arm import SimArm, SimArmConfig
from sims.sim_arm_spec import SimArmFactory, spec_from_model
from tests.hardware.rig import N, model, spec


def make(config=None, **changes):
    clock = ManualClock()
    arm = SimArm(model(), spec(**changes), clock=clock, config=config)
    return arm, clock


def goal(clock, joints, opening_m=0.0, life_s=1.0):
    now = clock.now_s()
    return ArmCommand(0, now, now + life_s, ControlMode.JOINT_POSITION, frozen(joints), opening_m, Source.SCRIPT)


def run(arm, clock, seconds, joints=None, opening_m=0.0):
    for _ in range(round(seconds / 0.01)):
        if joints is not None:
            arm.send(goal(clock, joints, opening_m))
        clock.advance(0.01)
    return arm.read()


def test_it_is_an_arm_with_a_scene():
    arm, _ = make()
    assert isinstance(arm, Arm) and isinstance(arm, SceneArm)


def test_connect_does_not_energise_and_enable_does_not_move():
    arm, clock = make()
    assert not arm.connect().enabled.any()
    with pytest.raises(RefusedError, match="not enabled"):
        arm.send(goal(clock, [0.1, 0, 0]))
    arm.enable()
    state = run(arm, clock, 0.5)
    assert state.enabled.all() and np.abs(state.position_rad).max() < 1e-6


def test_goals_are_reached_and_the_gripper_opens():
    arm, clock = make()
    arm.connect()
    arm.enable()
    state = run(arm, clock, 1.5, [0.3, -0.2, 0.1], 0.05)
    assert state.position_rad == pytest.approx([0.3, -0.2, 0.1], abs=2e-3)
    assert state.gripper_m == pytest.approx(0.05, abs=2e-3)
    assert state.goal_echo_rad.tolist() == [0.3, -0.2, 0.1]


def test_the_watchdog_brings_a_moving_arm_to_rest_and_stays_until_disabled():
    arm, clock = make()
    arm.connect()
    arm.enable()
    for step in range(30):
        arm.send(goal(clock, [0.01 * step, 0, 0]))
        clock.advance(0.01)
    assert arm.read().velocity_rad_s[0] > 0.3
    clock.advance(0.5)
    state = arm.read()
    assert state.vendor_mode == "watchdog" and state.faults
    assert np.abs(state.velocity_rad_s).max() < 0.01
    where = state.position_rad[0]
    assert run(arm, clock, 0.3, [1.0, 0, 0]).position_rad[0] == pytest.approx(where, abs=1e-3)
    arm.disable()
    assert not arm.read().faults


def test_an_enabled_arm_that_was_never_told_to_move_has_no_silence_to_fear():
    arm, clock = make()
    arm.connect()
    arm.enable()
    clock.advance(1.0)
    assert not arm.read().faults


def test_latencies_delay_goals_and_samples():
    arm, clock = make(command_latency_s=0.03, state_latency_s=0.02)
    arm.connect()
    arm.enable()
    clock.advance(0.1)
    state = arm.read()
    assert clock.now_s() - state.t_sample_s == pytest.approx(0.02, abs=2e-3)
    arm.send(goal(clock, [0.5, 0, 0]))
    clock.advance(0.04)
    assert arm.read().goal_echo_rad[0] == 0.0
    clock.advance(0.02)
    assert arm.read().goal_echo_rad[0] == 0.5


def test_a_goal_that_arrives_too_late_is_ignored():
    arm, clock = make(command_latency_s=0.05)
    arm.connect()
    arm.enable()
    arm.send(goal(clock, [0.5, 0, 0], life_s=0.01))
    clock.advance(0.08)
    assert arm.read().goal_echo_rad[0] == 0.0


def test_ticks_round_goals_and_samples_and_goals_stay_in_range():
    arm, clock = make(SimArmConfig(tick_rad=0.01))
    arm.connect()
    arm.enable()
    done = arm.send(goal(clock, [0.1234, 9.0, 0]))
    assert done.values == pytest.approx([0.12, 1.5, 0.0])
    clock.advance(0.05)
    ticks = arm.read().position_rad / 0.01
    assert ticks == pytest.approx(np.round(ticks), abs=1e-9)


def test_a_tripped_arm_says_that_it_keeps_its_goal():
    arm, clock = make()
    arm.connect()
    arm.enable()
    arm.send(goal(clock, [0.02, 0, 0]))
    clock.advance(0.5)
    assert arm.read().vendor_mode == "watchdog"
    sent = arm.send(goal(clock, [0.5, 0, 0]))
    assert sent.values == pytest.approx(arm.read().goal_echo_rad)
    assert sent.values[0] < 0.03


def test_link_loss_and_lost_replies_are_errors_not_old_samples():
    arm, clock = make()
    arm.connect()
    arm.faults.drop_replies = 1
    with pytest.raises(StaleStateError):
        arm.read()
    arm.read()
    arm.faults.link_cut = True
    for call in (arm.read, arm.enable, lambda: arm.send(goal(clock, np.zeros(N))), lambda: arm.stop(StopKind.HOLD)):
        with pytest.raises(CommunicationError):
            call()
    arm.disconnect()
    arm.disconnect()


@pytest.mark.parametrize(("brakes", "stays"), [(True, True), (False, False)])
def test_brakes_decide_what_power_off_means(brakes, stays):
    arm, clock = make(has_brakes=brakes)
    arm.connect()
    arm.enable()
    for step in range(30):
        arm.send(goal(clock, [0.02 * step, 0, 0]))
        clock.advance(0.01)
    before = arm.read()
    arm.stop(StopKind.POWER_OFF)
    clock.advance(0.5)
    after = arm.read()
    assert not after.enabled.any()
    assert (abs(after.position_rad[0] - before.position_rad[0]) < 0.1) == stays


def test_scene_can_be_set_only_while_disabled_and_the_model_stays_the_callers():
    scene = model()
    gains = scene.actuator_gainprm.copy()
    arm = SimArm(scene, spec(), clock=ManualClock())
    arm.connect()
    arm.enable()
    with pytest.raises(RefusedError, match="disable it first"):
        arm.reset_scene(np.zeros(N + 2))
    arm.disable()
    with pytest.raises(SpecError, match="qpos has shape"):
        arm.reset_scene(np.zeros(3))
    arm.reset_scene(np.full(N + 2, 0.02))
    assert arm.scene_state()[0] == pytest.approx(np.full(N + 2, 0.02))
    assert (scene.actuator_gainprm == gains).all()


def test_the_franka_scene_follows_a_chunk_behind_its_gate_for_ten_seconds(tmp_path):
    from sims.mujoco_vec import load_model

    scene, clock = load_model("lift"), ManualClock()
    arm_spec = spec_from_model(scene)
    factory = pickle.loads(pickle.dumps(SimArmFactory.of(scene, arm_spec)))
    arm = factory(clock)
    qpos = scene.qpos0.copy()
    joints = np.array(FRANKA.home_rad)
    qpos[[scene.joint(joint.name).qposadr[0] for joint in arm_spec.joints]] = joints
    arm.reset_scene(qpos)
    gate = SafetyGate(arm, GateConfig.at_vendor_limits(), clock=clock, latch=EStopLatch(tmp_path / "estop.json"))
    gate.connect()
    gate.enable()
    start_s = clock.now_s()
    for tick in range(1000):
        if tick % 20 == 0:
            times = clock.now_s() - start_s + 0.05 * np.arange(8)
            rows = np.column_stack([joints + 0.1 * np.sin(2 * times)[:, None], np.full(8, 0.04)])
            assert gate.submit(ActionChunk(tick, tick, clock.now_s(), clock.now_s(), 0.05, rows))
        gate.tick()
        clock.advance(0.01)
    assert gate.mode is Mode.RUNNING
    assert np.abs(gate.state.position_rad - gate.shaper.output).max() < 0.05
    assert gate.state.gripper_m == pytest.approx(0.04, abs=2e-3)
