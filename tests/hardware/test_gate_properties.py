"""Whatever a policy asks and whatever breaks, every sent command satisfies the limits."""

import numpy as np
import pytest

from hardware.estop import Mode
from hardware.gate_config import GateConfig
from hardware.types import HardwareError
from tests.hardware.rig import N, Rig


def nasty_chunk(rig: Rig, rng: np.random.Generator):
    rows = int(rng.integers(1, 16))
    kind = rng.choice(6, p=[0.35, 0.3, 0.02, 0.02, 0.01, 0.3])
    base = np.tile(rig.gate.shaper.target, (rows, 1))
    if kind == 0:
        joints = base + np.cumsum(rng.normal(rng.normal(0, 0.03, N), 0.01, (rows, N)), axis=0)
    elif kind == 1:
        joints = base + np.cumsum(rng.uniform(-0.09, 0.09, (rows, N)), axis=0)
    elif kind == 2:
        joints = rng.uniform(-3, 3, (rows, N))
    elif kind == 3:
        joints = base * 57.3
    elif kind == 4:
        joints = base + np.where(rng.random((rows, N)) < 0.1, np.nan, 0.02)
    else:
        joints = base + 0.065 * rng.choice([-1.0, 1.0], (rows, N))
    return rig.chunk(joints, dt_s=float(rng.uniform(0.03, 0.1)), gripper_m=float(rng.uniform(-0.1, 0.2)))


def break_something(rig: Rig, rng: np.random.Generator) -> None:
    faults = rig.arm.faults
    match rng.integers(0, 6):
        case 0:
            faults.drop_replies = int(rng.integers(1, 4))
        case 1:
            faults.glitch = {int(rng.integers(N)): float(rng.normal(0, 0.5))}
        case 2:
            faults.lose_writes = bool(rng.random() < 0.3)
        case 3:
            faults.torque_lost = {0} if rng.random() < 0.2 else set()
        case 4:
            rig.clock.advance(float(rng.uniform(0, 0.15)))
        case _:
            rig.gate.hold("random")


def revive(rig: Rig) -> None:
    """What an operator would do; every refusal is fine."""
    faults = rig.arm.faults
    faults.lose_writes, faults.torque_lost = False, set()
    if rig.gate.mode is Mode.FAULT:
        rig.arm.disable()  # acknowledged at the arm itself
    try:
        if rig.gate.mode in {Mode.HOLD, Mode.FAULT}:
            rig.gate.reset("property test")
        if rig.gate.mode is Mode.IDLE:
            rig.gate.enable()
    except HardwareError:
        pass


@pytest.mark.parametrize("seed", range(6))
def test_every_sent_command_satisfies_position_velocity_and_acceleration(tmp_path, monkeypatch, seed):
    rng = np.random.default_rng(seed)
    config = GateConfig(auto_resume=bool(seed % 2), jerk_rad_s3=[80.0, 200.0][seed % 2], ramp_s=0.2)
    rig = Rig(tmp_path, config)
    runs: list[list[np.ndarray]] = []
    grippers: list[float] = []
    true_send, true_enable = rig.arm.send, rig.arm.enable

    def enable() -> None:
        true_enable()
        runs.append([rig.arm.read().position_rad])

    def send(command):
        runs[-1].append(command.values)
        grippers.append(command.gripper_m)
        return true_send(command)

    monkeypatch.setattr(rig.arm, "send", send)
    monkeypatch.setattr(rig.arm, "enable", enable)
    runs.append([rig.arm.read().position_rad])
    for _ in range(2500):
        if rng.random() < 0.1:
            rig.gate.submit(nasty_chunk(rig, rng))
        if rng.random() < 0.01:
            break_something(rig, rng)
        if rng.random() < 0.03:
            revive(rig)
        rig.tick()
    assert rig.gate.ledger.counts["hold"] > 0
    assert sum(map(len, runs)) > 500

    margin, dt = config.position_margin_rad, config.tick_s
    low = rig.arm_spec.column("position_min_rad") + margin
    high = rig.arm_spec.column("position_max_rad") - margin
    moved = 0.0
    for run in runs:
        path = np.array(run)
        speed = np.diff(path, axis=0, prepend=path[:1]) / dt
        assert np.isfinite(path).all()
        assert (path >= np.minimum(low, path[0]) - 1e-9).all() and (path <= np.maximum(high, path[0]) + 1e-9).all()
        assert np.abs(speed).max() <= 1.5 + 1e-6
        assert np.abs(np.diff(speed, axis=0)).max(initial=0.0) <= 8.0 * dt + 1e-6
        moved = max(moved, float(np.ptp(path, axis=0).max()))
    assert moved > 0.1
    assert np.isfinite(grippers).all()
    assert min(grippers) >= -1e-12 and max(grippers) <= 0.08 + 1e-12
