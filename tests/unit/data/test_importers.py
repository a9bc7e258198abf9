"""robomimic HDF5 and DPPO npz files, written here by hand."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

from robopo.data.dppo_npz import read_dppo_npz
from robopo.data.hdf5 import read_robomimic
from robopo.data.lerobot import read_lowdim, write_lerobot
from robopo.errors import DataError

ENVIRONMENT = {"env_name": "Lift", "env_kwargs": {"control_freq": 20, "reward_shaping": False}}


@pytest.fixture
def robomimic(tmp_path: Path) -> Path:
    """demo_10 (2 frames, failed), demo_2 (3 frames, solved): numeric order is 2, 10."""
    path = tmp_path / "low_dim.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps(ENVIRONMENT)
        for number, length in ((10, 2), (2, 3)):
            demo = data.create_group(f"demo_{number}")
            demo["actions"] = np.full((length, 7), number, np.float64)
            demo["rewards"] = (np.arange(length) == 2).astype(np.float64)
            demo["obs/robot0_eef_pos"] = np.full((length, 3), 0.1)
            demo["obs/robot0_eef_quat"] = np.full((length, 4), 0.5)
            demo["obs/robot0_gripper_qpos"] = np.full((length, 2), 0.04)
            demo["obs/object"] = np.full((length, 10), 7.0)
        file["mask/train"] = np.array([b"demo_10"])
    return path


def test_robomimic_defaults(robomimic: Path, tmp_path: Path) -> None:
    data = read_robomimic(robomimic)
    assert data.lengths.tolist() == [3, 2]
    assert data.action[:, 0].tolist() == [2, 2, 2, 10, 10]
    assert data.success is not None
    assert data.success.tolist() == [True, False]
    assert (data.control_hz, data.task, data.action_mode) == (20, "Lift", "")
    np.testing.assert_allclose(data.obs["state"][0], [0.1] * 3 + [0.5] * 4 + [0.04] * 2)
    assert data.obs["environment_state"].shape == (5, 10)
    assert data.features["state"].names[2:8] == (
        "robot0_eef_pos_z", "robot0_eef_quat_x", "robot0_eef_quat_y", "robot0_eef_quat_z", "robot0_eef_quat_w",
        "robot0_gripper_qpos_0",
    )  # fmt: skip
    assert read_lowdim(write_lerobot(tmp_path / "converted", data)).fingerprint == data.fingerprint


def test_robomimic_choices(robomimic: Path) -> None:
    data = read_robomimic(robomimic, filter_key="train", entries={"state": ["object", "robot0_eef_pos"]}, control_hz=10)
    assert (data.num_episodes, data.control_hz, data.obs["state"].shape) == (1, 10, (2, 13))


def test_robomimic_faults(robomimic: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no filter 'trian'; did you mean 'train'"):
        read_robomimic(robomimic, filter_key="trian")
    with pytest.raises(DataError, match="no column 'objects'; did you mean 'object'"):
        read_robomimic(robomimic, entries={"state": ["objects"]})
    with pytest.raises(DataError, match="doesn't exist"):
        read_robomimic(tmp_path / "none.hdf5")
    (tmp_path / "text.hdf5").write_text("no")
    with pytest.raises(DataError, match="not a readable HDF5"):
        read_robomimic(tmp_path / "text.hdf5")
    with h5py.File(tmp_path / "empty.hdf5", "w") as file:
        file.create_group("data")
    with pytest.raises(DataError, match="zero demonstrations"):
        read_robomimic(tmp_path / "empty.hdf5")
    with h5py.File(robomimic, "r+") as file:
        file["data/demo_2/obs/object"][1, 4] = np.nan
        del file["data"].attrs["env_args"]
    with pytest.raises(DataError, match="pass control_hz"):
        read_robomimic(robomimic)
    with pytest.raises(DataError, match="episode 0, frame 1, column 'environment_state' element 'object_4'"):
        read_robomimic(robomimic, control_hz=20)


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    states = np.linspace(-1, 1, 10, dtype=np.float32).reshape(5, 2)
    np.savez(tmp_path / "train.npz", states=states, actions=-states[:, :1], traj_lengths=np.array([2, 3]))
    limits = {"obs_min": [0.0, 10.0], "obs_max": [4.0, 20.0], "action_min": [-2.0], "action_max": [2.0]}
    np.savez(tmp_path / "normalization.npz", **{name: np.array(value) for name, value in limits.items()})
    return tmp_path / "train.npz"


def test_dppo_as_stored(npz: Path) -> None:
    data = read_dppo_npz(npz, control_hz=20, state_dim=1, max_episodes=1)
    assert (data.lengths.tolist(), data.action_mode) == ([2], "normalized")
    np.testing.assert_allclose(data.obs["environment_state"][:, 0], [-1 + 2 / 9, -1 + 6 / 9], rtol=1e-6)


def test_dppo_in_physical_units(npz: Path) -> None:
    data = read_dppo_npz(npz, control_hz=20, normalization=npz.with_name("normalization.npz"))
    assert data.lengths.tolist() == [2, 3]
    # First element of the first state is -1 -> its minimum; last element of the last state is +1 -> its maximum.
    np.testing.assert_allclose([data.obs["state"][0, 0], data.obs["state"][4, 1]], [0.0, 20.0], atol=2e-6)
    np.testing.assert_allclose(data.action[0], [2.0], atol=2e-6)
    assert data.action_mode == ""


def test_dppo_faults(npz: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="state_dim=2"):
        read_dppo_npz(npz, control_hz=20, state_dim=2)
    with pytest.raises(DataError, match="zero demonstrations"):
        read_dppo_npz(npz, control_hz=20, max_episodes=0)
    np.savez(tmp_path / "bad.npz", state=np.zeros(3), actions=np.zeros(3), traj_lengths=np.zeros(1))
    with pytest.raises(DataError, match=r"missing column 'states' .*did you mean 'state'"):
        read_dppo_npz(tmp_path / "bad.npz", control_hz=20)
    np.savez(tmp_path / "long.npz", states=np.zeros((2, 1)), actions=np.zeros((2, 1)), traj_lengths=np.array([3]))
    with pytest.raises(DataError, match="add up to 3 frames, states have 2"):
        read_dppo_npz(tmp_path / "long.npz", control_hz=20)
    with pytest.raises(DataError, match="files of different tasks"):
        read_dppo_npz(tmp_path / "train.npz", control_hz=20, normalization=_other_limits(tmp_path))
    (tmp_path / "text.npz").write_text("no")
    with pytest.raises(DataError, match="not a readable npz"):
        read_dppo_npz(tmp_path / "text.npz", control_hz=20)
    with pytest.raises(DataError, match="doesn't exist"):
        read_dppo_npz(tmp_path / "none.npz", control_hz=20)


def _other_limits(folder: Path) -> Path:
    names = ("obs_min", "obs_max", "action_min", "action_max")
    np.savez(folder / "other.npz", **{name: np.zeros(3) for name in names})
    return folder / "other.npz"
