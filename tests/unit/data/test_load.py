"""One entrance for every format."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from robopo.data.demo import DemoData
from robopo.data.lerobot import write_lerobot
from robopo.data.load import load_demonstrations
from robopo.errors import DataError


def test_npz_is_split_and_brought_back_to_physical_units(tmp_path: Path) -> None:
    states = np.array([[-1.0, 0.0, 1.0], [1.0, 0.0, -1.0]], np.float32)
    np.savez(tmp_path / "train.npz", states=states, actions=states[:, :2], traj_lengths=np.array([2]))
    raw = load_demonstrations(tmp_path / "train.npz", control_hz=20.0, state_dim=2)
    assert raw.action_mode == "normalized" and raw.control_hz == 20.0
    assert {key: value.shape for key, value in raw.obs.items()} == {"state": (2, 2), "environment_state": (2, 1)}
    limits = {"obs_min": np.zeros(3), "obs_max": np.full(3, 4.0), "action_min": np.zeros(2), "action_max": np.ones(2)}
    np.savez(tmp_path / "normalization.npz", **limits)
    physical = load_demonstrations(tmp_path / "train.npz", control_hz=20.0, state_dim=2)
    np.testing.assert_allclose(physical.obs["state"], [[0.0, 2.0], [4.0, 2.0]], atol=1e-5)


def test_folder_and_missing_files(tmp_path: Path) -> None:
    data = DemoData(obs={"state": np.zeros((3, 2))}, action=np.ones((3, 1)), episode_index=np.zeros(3), control_hz=20.0)
    write_lerobot(tmp_path / "set", data)
    found = load_demonstrations(tmp_path / "set", control_hz=5.0)
    assert found.control_hz == 20.0 and found.num_frames == 3
    for name in ("absent", "absent.hdf5", "absent.npz"):
        with pytest.raises(DataError, match="absent"):
            load_demonstrations(tmp_path / name, control_hz=20.0)
