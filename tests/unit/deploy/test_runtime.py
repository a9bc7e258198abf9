"""The runtime in real time on a small simulated arm; every run lasts a second or two and is judged by states."""

import json
import os
import signal
from dataclasses import replace

import numpy as np
import pytest

from hardware.clock import RealClock
from hardware.estop import Mode
from robopo.deploy.config import DeployConfig
from robopo.deploy.recorder import Recorder
from robopo.deploy.runtime import Deployment, deploy
from robopo.errors import RobopoError
from sims.sim_arm import SimArm
from tests.hardware.rig import N, model, spec
from tests.hardware.tiny import LOADED
from tests.unit.deploy import dummies


def observe(state):
    return {"state": np.append(state.position_rad, state.gripper_m), "unused": np.zeros(1)}


@pytest.fixture
def arm():
    return SimArm(model(), spec(vendor_watchdog_s=1.0), clock=RealClock())


@pytest.fixture
def setup(arm, tmp_path):
    gate = replace(LOADED, first_chunk_s=10.0, tracking_time_s=1.0, observation_age_s=1.5, open_loop_s=0.8)
    config = DeployConfig(
        run_dir=tmp_path / "run", estop_path=tmp_path / "estop.json", gate=gate, episode_steps=8, hold_rows=8
    )
    checkpoint = dummies.write_checkpoint(tmp_path / "policy")
    return {
        "config": config,
        "arm": arm,
        "observe": observe,
        "resolver": dummies.add_deltas,
        "checkpoint": checkpoint,
        "load": dummies.load_push,
    }


def assert_released(arm: SimArm) -> None:
    arm.connect()
    assert arm.vendor_mode == "disabled"
    assert np.abs(arm.scene_state()[1][:N]).max() < 0.05


def rules(run_dir):
    events = [json.loads(line) for line in (run_dir / "events.jsonl").read_text().splitlines()]
    return [event.get("rule") for event in events if event["kind"] == "mode"]


def test_episodes_are_reset_run_recorded_and_reported(setup, arm):
    resets, written = [], []

    def reset(episode):
        resets.append(episode)
        arm.reset_scene(np.zeros(N + 2))

    setup["config"] = replace(setup["config"], episodes=2, continue_after_hold=True)
    report = deploy(**setup, recorder=Recorder(written.append), reset=reset)
    assert resets == [0, 1]
    assert report.episodes == 2 and report.successes == 0
    assert report.faults == 0 and report.estops == 0
    (episodes,) = written
    assert report.steps == sum(len(episode.t_s) for episode in episodes)
    if report.holds == 0:  # a machine that starves the policy may hold, rightly
        assert report.steps == 16
        assert episodes[0].obs["state"][-1, 0] > 0.05
        np.testing.assert_allclose(episodes[0].action[:, 0], 0.02, atol=1e-6)
    assert report.period_p50_ms > 0 and report.inference.samples >= 2
    saved = json.loads((setup["config"].run_dir / "report.json").read_text())
    assert saved["steps"] == report.steps
    assert (setup["config"].run_dir / "ticks.npz").exists()
    assert_released(arm)


def test_success_ends_the_episode(setup, arm):
    report = deploy(**setup, success=lambda: arm.scene_state()[0][0] > 0.03)
    assert report.holds or (report.successes == 1 and report.steps < 8)


@pytest.mark.parametrize(
    ("load", "rule"),
    [
        (dummies.load_nan, "FINITE_SHAPE"),
        (dummies.load_raising, "FINITE_SHAPE"),
        (dummies.load_dying, "STALE_COMMAND"),
    ],
)
def test_06_a_policy_that_breaks_holds_the_arm(setup, arm, load, rule):
    setup["config"] = replace(setup["config"], episode_steps=200)
    setup["load"] = load
    report = deploy(**setup)
    assert report.holds == 1 and report.faults == 0
    assert report.stopped_by == rule
    assert rule in rules(setup["config"].run_dir)
    assert_released(arm)


def test_06_killing_the_policy_process_from_outside(setup, arm):
    killed = []

    def success():
        position, speed = (values[0] for values in arm.scene_state())
        if not killed and position > 0.03 and speed > 0.1:
            os.kill(deployment.policy_process.pid, signal.SIGKILL)
            killed.append(deployment.gate.ring.count - 1)
        return False

    setup["config"] = replace(setup["config"], episode_steps=200)
    deployment = Deployment(**setup, success=success)
    report = deployment.run()
    assert killed and report.stopped_by == "STALE_COMMAND"
    assert_released(arm)
    # What was measured while the link was open, which disconnecting can't have improved.
    ticks = np.load(setup["config"].run_dir / "ticks.npz")["ticks"]
    speed = np.abs(ticks["velocity_rad_s"]).max(axis=1)
    assert ticks["mode"][killed[0]] == Mode.RUNNING and ticks["mode"][-1] == Mode.HOLD
    assert speed[killed[0]] > 0.05
    assert speed[-5:].max() < 0.01
    sent = ticks["sent_rad"][-5:]
    assert np.isfinite(sent).all() and np.ptp(sent, axis=0).max() < 1e-6


def test_06_no_further_episode_without_a_policy(setup, arm):
    resets = []

    def success():
        process = deployment.policy_process
        os.kill(process.pid, signal.SIGKILL)
        process._process.join()
        return True

    setup["config"] = replace(setup["config"], episodes=3, continue_after_hold=True)
    deployment = Deployment(**setup, success=success, reset=resets.append)
    report = deployment.run()
    assert resets == [0] and report.stopped_by == "POLICY_PROCESS_ENDED" and not report.clean
    assert_released(arm)


def test_a_recording_that_cannot_be_written_is_an_error_after_everything_else(setup, arm):
    def full(episodes):
        raise OSError("no space left")

    with pytest.raises(RobopoError, match=r"could not be written.*no space left"):
        deploy(**setup, recorder=Recorder(full))
    assert (setup["config"].run_dir / "report.json").exists()
    assert_released(arm)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_44_signals_stop_in_control(setup, arm, number):
    sent = []

    def success():
        if not sent:
            sent.append(os.kill(os.getpid(), number))
        return False

    before = signal.getsignal(number)
    setup["config"] = replace(setup["config"], episode_steps=200)
    report = deploy(**setup, success=success)
    assert report.stopped_by == number.name and report.faults == 0
    assert signal.getsignal(number) is before
    assert_released(arm)


def test_44_an_exception_in_user_code_stops_and_releases(setup, arm):
    def broken(state):
        if state.position_rad[0] > 0.02:
            raise ZeroDivisionError("camera math")
        return observe(state)

    setup["observe"] = broken
    recorder = Recorder(lambda _: (_ for _ in ()).throw(OSError("no space left")))
    recorder.episodes.append(object())
    deployment = Deployment(**setup, recorder=recorder)
    with pytest.raises(ZeroDivisionError, match="camera math") as caught:
        deployment.run()
    assert "no space left" in caught.value.__notes__[0]  # a second error doesn't hide the first
    assert deployment.gate.mode is Mode.DISCONNECTED
    assert not deployment.policy_process.alive
    assert_released(arm)


def test_wrong_observation_and_unloadable_policy_are_named(setup):
    with pytest.raises(RobopoError, match="FileNotFoundError"):
        deploy(**{**setup, "load": dummies.load_nothing})
    with pytest.raises(RobopoError, match="the policy expects"):
        deploy(**{**setup, "observe": lambda state: {"state": np.zeros(99)}})
