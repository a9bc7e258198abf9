"""Processes in real time: few, short, and about states rather than milliseconds."""

import multiprocessing
import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest

from hardware.remote import ArmProcess, RemoteArm, _Op, _release
from hardware.types import ArmCommand, CommunicationError, ControlMode, RefusedError, Source, StopKind, frozen
from tests.hardware.rig import N
from tests.hardware.tiny import factory, own_and_sweep, sweep_for_ever


@pytest.fixture
def served():
    process = ArmProcess(factory())
    yield process
    process.close()


def wait_for(condition, seconds=20.0):
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return False


def test_a_served_arm_answers_like_one_in_process(served):
    arm = served.client()
    first = arm.connect()
    assert first.vendor_mode == "disabled" and not first.enabled.any()
    with pytest.raises(RefusedError, match="enabled"):
        arm.enable()
        arm.reset_scene(np.zeros(N + 2))
    now = time.monotonic()
    goal = ArmCommand(0, now, now + 1.0, ControlMode.JOINT_POSITION, frozen([0.01, 0, 0]), 0.0, Source.SCRIPT)
    arm.send(goal)
    assert wait_for(lambda: arm.read().goal_echo_rad[0] == 0.01)
    assert wait_for(lambda: arm.read().vendor_mode == "watchdog")
    assert arm.read().faults[0].fault.value == "vendor_stop"
    arm.stop(StopKind.HOLD)
    arm.disable()
    qpos = np.zeros(N + 2)
    qpos[1] = 0.5
    arm.reset_scene(qpos)
    assert wait_for(lambda: abs(arm.scene_state()[0][1] - 0.5) < 1e-3)
    assert arm.read().seq > first.seq
    arm.disconnect()
    arm.close()


def test_08_killing_the_control_process_brings_the_arm_to_rest(served, tmp_path):
    context = multiprocessing.get_context("spawn")
    control = context.Process(target=sweep_for_ever, args=(served.address, str(tmp_path)))
    control.start()
    watch = RemoteArm(served.address)
    kill_in_motion_and_watch(control, watch)
    watch.close()


def test_08_an_orphaned_arm_process_brings_its_arm_to_rest_and_ends(tmp_path):
    context = multiprocessing.get_context("spawn")
    receiver, sender = context.Pipe(duplex=False)
    control = context.Process(target=own_and_sweep, args=(sender, str(tmp_path)))
    control.start()
    assert receiver.poll(30.0)
    address = receiver.recv()
    watch = RemoteArm(address)
    kill_in_motion_and_watch(control, watch)
    watch.close()

    def gone():
        try:
            os.kill(address.server_pid, 0)
        except ProcessLookupError:
            return True
        return "Z" in Path(f"/proc/{address.server_pid}/stat").read_text().split()[2]

    assert wait_for(gone)


def kill_in_motion_and_watch(control, watch):
    def speed():
        record = watch._rings.state.latest()
        return 0.0 if record is None else float(np.abs(record[1]["velocity"]).max())

    assert wait_for(lambda: speed() > 0.2)
    os.kill(control.pid, signal.SIGKILL)
    control.join()
    assert wait_for(lambda: watch.read().vendor_mode == "watchdog")
    time.sleep(0.3)
    states = [watch.read() for _ in range(5)]
    assert all(np.abs(state.velocity_rad_s).max() < 0.02 for state in states)
    assert all(np.allclose(state.goal_echo_rad, states[0].goal_echo_rad) for state in states)


def test_a_dead_server_is_a_lost_link(served):
    arm = served.client()
    arm.connect()
    os.kill(served.address.server_pid, signal.SIGKILL)
    served._process.join()
    with pytest.raises(CommunicationError, match="did not answer"):
        arm._call(_Op.CONNECT, timeout_s=0.1)
    with pytest.raises(CommunicationError, match="did not answer STOP"):
        arm.stop(StopKind.CONTROLLED)
    arm.close()


def test_an_arm_whose_stop_fails_is_disconnected_all_the_same():
    class Broken:
        disconnected = False

        def stop(self, kind):
            raise CommunicationError("no answer")

        def disconnect(self):
            self.disconnected = True

    arm = Broken()
    with pytest.raises(CommunicationError, match="no answer"):
        _release(arm)
    assert arm.disconnected
