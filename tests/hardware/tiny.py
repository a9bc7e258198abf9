"""What spawned test processes run: importable by name."""

from __future__ import annotations

import time
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np

from hardware.clock import RealClock
from hardware.estop import EStopLatch, Mode
from hardware.gate import SafetyGate
from hardware.gate_config import GateConfig
from hardware.remote import ArmAddress, ArmProcess, RemoteArm
from hardware.types import ActionChunk, ArmSpec, Clock
from sims.sim_arm import SimArm
from tests.hardware.rig import N, model, spec

# Wide enough for a machine that runs other things: these tests look at states, not at milliseconds.
LOADED = GateConfig(stale_hold_s=0.2, stale_fault_s=0.8, missed_reads_fault=60, ramp_s=0.2, first_chunk_s=30.0)


@dataclass(frozen=True)
class TinyFactory:
    spec: ArmSpec
    scene_size: tuple[int, int] = (N + 2, N + 2)

    def __call__(self, clock: Clock) -> SimArm:
        return SimArm(model(), self.spec, clock=clock)


def factory(watchdog_s: float = 0.5) -> TinyFactory:
    return TinyFactory(spec(vendor_watchdog_s=watchdog_s, state_hz=20.0))


def sweep_for_ever(address: ArmAddress, folder: str) -> None:
    """A control process that swings joint 1 until it is killed."""
    clock = RealClock()
    arm = RemoteArm(address, clock)
    gate = SafetyGate(arm, LOADED, clock=clock, latch=EStopLatch(Path(folder) / "estop.json"))
    gate.connect()
    gate.enable()
    start_s, seq, due_s = clock.now_s(), 0, clock.now_s()
    while True:
        now_s = clock.now_s()
        if gate.mode is Mode.RUNNING and now_s >= start_s + 0.1 * seq:
            times = now_s - start_s + 0.05 * np.arange(8)
            rows = np.zeros((8, N + 1))
            rows[:, 0] = 0.4 * np.sin(2.0 * times)
            gate.submit(ActionChunk(seq, seq, now_s, now_s, 0.05, rows))
            seq += 1
        gate.tick()
        due_s = max(due_s + 0.01, now_s)
        time.sleep(max(0.0, due_s - time.monotonic()))


def own_and_sweep(sender: Connection, folder: str) -> None:
    """A control process that also started the arm's process, as a deployment does."""
    process = ArmProcess(factory())
    sender.send(process.address)
    sweep_for_ever(process.address, folder)
