"""Policies without torch for spawned processes: importable by name, picklable."""

from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np

from tests.hardware.rig import N

HORIZON, ACTION_STEPS, HZ = 6, 4, 20.0


def write_checkpoint(folder: Path, **changes: object) -> Path:
    """A folder with the part of a checkpoint that the control process reads."""
    spec = {
        "obs": {"state": N + 1},
        "action_dim": N + 1,
        "action_names": ["a"] * (N + 1),
        "obs_steps": 1,
        "horizon": HORIZON,
        "action_steps": ACTION_STEPS,
        "control_hz": HZ,
        "action_mode": "joint_delta",
        "task": "tiny",
        **changes,
    }
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps({"spec": spec}))
    return folder


def add_deltas(q_ref, gripper, chunk):
    """Resolver of joint deltas."""
    return q_ref + np.cumsum(chunk[:, :N], axis=0), chunk[:, N]


class Push:
    """Moves joint 1 by 0.02 rad per step toward +, opening 2 cm."""

    def begin(self, episode: int) -> None:
        self.episode = episode

    def __call__(self, obs):
        chunk = np.zeros((HORIZON, N + 1))
        chunk[:, 0], chunk[:, N] = 0.02, 0.02
        return self.spoil(chunk, obs)

    def spoil(self, chunk, obs):
        return chunk


class NaNLater(Push):
    def spoil(self, chunk, obs):
        if obs["state"][-1, 0] > 0.05:
            chunk[2, 1] = np.nan
        return chunk


class RaisesLater(Push):
    def spoil(self, chunk, obs):
        if obs["state"][-1, 0] > 0.05:
            raise RuntimeError("cuda is gone")
        return chunk


class DiesLater(Push):
    """Kills its own process as an out-of-memory killer would."""

    def spoil(self, chunk, obs):
        if obs["state"][-1, 0] > 0.05:
            os.kill(os.getpid(), 9)
        return chunk


def load_push(folder: Path, seed: int) -> Push:
    return Push()


def load_nan(folder: Path, seed: int) -> Push:
    return NaNLater()


def load_raising(folder: Path, seed: int) -> Push:
    return RaisesLater()


def load_dying(folder: Path, seed: int) -> Push:
    return DiesLater()


def load_nothing(folder: Path, seed: int) -> Push:
    raise FileNotFoundError("model.safetensors")
