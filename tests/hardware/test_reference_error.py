"""Interlock 12: the reference runs no further ahead of the arm than allowed, so a contact is pressed gently."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from hardware.estop import Mode
from hardware.gate_config import GateConfig
from hardware.interlocks import Rule
from hardware.shaper import CommandShaper
from hardware.types import ActionChunk

from .rig import Rig, spec


def sweep(t0_s: float) -> ActionChunk:
    """One rad in one second, by the first joint."""
    values = np.zeros((21, 4))
    values[:, 0] = np.linspace(0.0, 1.0, 21)
    return ActionChunk(1, 1, t0_s, t0_s, 0.05, values)


def test_the_reference_of_a_blocked_arm_stays_close_to_it() -> None:
    config = GateConfig(reference_error_rad=0.1, ramp_s=0.1)
    free, blocked = CommandShaper(spec(), config), CommandShaper(spec(), config)
    for shaper in (free, blocked):
        shaper.seed(np.zeros(3), 0.0)
        shaper.begin_ramp(0.0)
    rules = 0
    for tick in range(120):
        now_s = tick * config.tick_s
        free.follow(sweep(0.0), now_s, free.output)  # an arm that follows exactly
        rules |= blocked.follow(sweep(0.0), now_s, np.zeros(3)).rules
    assert free.output[0] > 0.9
    assert 0.09 < blocked.output[0] <= 0.1 + 1e-9
    assert rules & (1 << Rule.REFERENCE_ERROR)


def furthest_ahead(folder: Path, **settings: float) -> float:
    rig = Rig(folder, GateConfig(tracking_error_rad=0.6, velocity_rad_s=3.0, ramp_s=0.1, **settings))
    rig.drive(0.8, speed_rad_s=1.5)
    assert rig.gate.mode is Mode.RUNNING
    return max(abs(record["sent_rad"][0] - record["position_rad"][0]) for record in rig.gate.ring.last())


def test_the_gate_measures_for_itself(tmp_path: Path) -> None:
    # One tick of motion may lie between the sample and the command.
    assert furthest_ahead(tmp_path / "near", reference_error_rad=0.02) <= 0.02 + 1.5 * 0.01
    assert furthest_ahead(tmp_path / "far") > 0.05
