"""Pictures in demonstrations, in files and in buffers: uint8 from end to end, and bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from robopo.data.demo import DemoData, Episode
from robopo.data.hdf5 import read_robomimic
from robopo.data.lerobot import read_lowdim, write_lerobot
from robopo.data.lerobot_images import IMAGES, wanted_pictures
from robopo.data.load import load_demonstrations
from robopo.data.replay import ReplayBuffer, demo_transitions
from robopo.data.sampler import WindowDataset, frame_tensors
from robopo.data.stats import demo_stats
from robopo.errors import DataError
from robopo.policies.base import PolicySpec

SHAPE = (8, 6, 3)
FRONT = "image_front"
SPEC = PolicySpec({"state": 3}, 2, ("x", "y"), obs_steps=2, horizon=2, action_steps=2, images={FRONT: SHAPE})


def pictures(frames: int = 5) -> np.ndarray[Any, np.dtype[np.uint8]]:
    return np.random.default_rng(1).integers(0, 256, (frames, *SHAPE), dtype=np.uint8)


def make_data(**changes: Any) -> DemoData:
    rng = np.random.default_rng(0)
    settings: dict[str, Any] = {
        "obs": {"state": rng.normal(size=(5, 3)), FRONT: pictures()},
        "action": rng.normal(size=(5, 2)),
        "episode_index": np.array([0, 0, 0, 1, 1]),
        "control_hz": 20,
        "task": "lift",
        "success": np.array([True, False]),
    }
    return DemoData(**settings | changes)


def test_pictures_stay_uint8_and_are_not_copied() -> None:
    given = pictures()
    data = make_data(obs={"state": np.zeros((5, 3)), FRONT: given})
    assert data.images == (FRONT,)
    assert data.obs[FRONT].dtype == np.uint8
    assert np.shares_memory(data.obs[FRONT], given)
    assert not data.obs[FRONT].flags.writeable
    assert set(data.features) == {"state", "action"} == set(demo_stats(data))
    assert data.episode(1).obs[FRONT].shape == (2, *SHAPE)
    windows = WindowDataset(data, obs_steps=2, horizon=2)
    assert windows._obs[FRONT].data_ptr() == given.__array_interface__["data"][0]
    assert windows._obs[FRONT].dtype == torch.uint8


def test_windows_gather_pictures_with_their_history() -> None:
    data = make_data()
    batch = WindowDataset(data, obs_steps=2, horizon=2, keys=["state", FRONT]).gather(torch.tensor([0, 4]))
    assert batch.obs[FRONT].dtype == torch.uint8
    np.testing.assert_array_equal(batch.obs[FRONT], data.obs[FRONT][[[0, 0], [3, 4]]])
    blind = WindowDataset(data, obs_steps=1, horizon=2, keys=["state"])
    assert list(blind.gather(torch.tensor([0])).obs) == ["state"]
    assert set(frame_tensors(data, keys=["state", "action"])) == {"state", "action"}


def test_the_fingerprint_sees_a_pixel() -> None:
    changed = pictures()
    changed[0, 0, 0, 0] ^= 1
    assert make_data().fingerprint == make_data().fingerprint
    assert make_data(obs={**make_data().obs, FRONT: changed}).fingerprint != make_data().fingerprint


def test_episodes_are_joined() -> None:
    data = make_data()
    again = DemoData.from_episodes([data.episode(0), data.episode(1)], control_hz=20, task="lift")
    assert again.fingerprint == data.fingerprint
    with pytest.raises(DataError, match="'image_front' has 1 frames"):
        DemoData.from_episodes([Episode({FRONT: pictures(1)}, np.zeros((2, 2)))], control_hz=20)


def test_a_lerobot_folder_gives_back_every_pixel(tmp_path: Path) -> None:
    data = make_data()
    folder = write_lerobot(tmp_path / "d", data)
    assert load_demonstrations(folder, control_hz=20, images=[FRONT]).fingerprint == data.fingerprint
    blind = read_lowdim(folder)
    assert blind.images == ()
    late = read_lowdim(folder, images=[FRONT], exclude_episodes=[0])
    np.testing.assert_array_equal(late.obs[FRONT], data.obs[FRONT][3:])
    info = json.loads((folder / "meta/info.json").read_text())
    assert info["features"][IMAGES + "front"] == {
        "dtype": "image", "shape": [8, 6, 3], "names": ["height", "width", "channels"],
    }  # fmt: skip
    cell = pq.read_table(folder / "data/chunk-000/file-000.parquet").column(IMAGES + "front")[0].as_py()
    assert cell["bytes"].startswith(b"\x89PNG") and cell["path"] is None
    with pytest.raises(
        DataError, match=r"missing pictures 'observation\.images\.wrist'.*did you mean|missing pictures"
    ):
        read_lowdim(folder, images=["image_wrist"])


def test_video_is_refused_with_the_way_out() -> None:
    with pytest.raises(DataError, match=r"stored as video.*use_videos=False"):
        wanted_pictures({IMAGES + "front": {"dtype": "video", "shape": [8, 6, 3]}}, [FRONT])


@pytest.mark.slow
def test_lerobot_opens_our_pictures(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from lerobot.datasets.lerobot_dataset import LeRobotDataset

    data = make_data()
    dataset = LeRobotDataset("local/pictures", root=write_lerobot(tmp_path / "d", data))
    picture = dataset[4][IMAGES + "front"]  # [3, height, width] in [0, 1]
    np.testing.assert_allclose(picture.permute(1, 2, 0) * 255, data.obs[FRONT][4], atol=1e-3)
    assert np.shape(dataset.meta.stats[IMAGES + "front"]["mean"]) == (3, 1, 1)


def test_robomimic_pictures(tmp_path: Path) -> None:
    path = tmp_path / "image.hdf5"
    with h5py.File(path, "w") as file:
        data = file.create_group("data")
        data.attrs["env_args"] = json.dumps({"env_name": "Lift", "env_kwargs": {"control_freq": 20}})
        demo = data.create_group("demo_0")
        demo["actions"], demo["rewards"] = np.zeros((5, 7)), np.ones(5)
        demo["obs/robot0_eef_pos"], demo["obs/front_image"] = np.zeros((5, 3)), pictures()
    read = load_demonstrations(path, control_hz=20, images=[FRONT])
    np.testing.assert_array_equal(read.obs[FRONT], pictures())
    assert read_robomimic(path).images == ()
    with pytest.raises(DataError, match="camera_names"):
        read_robomimic(path, images=["image_wrist"])


def test_a_policy_is_told_what_lacks() -> None:
    data = make_data()
    data.require({"state": 3}, 2, {FRONT: SHAPE})
    with pytest.raises(DataError, match=r"no pictures 'image_wrist'.*sim\.cameras=\[wrist\]"):
        data.require({}, 2, {"image_wrist": SHAPE})
    with pytest.raises(DataError, match=r"sim\.image_size=8"):
        data.require({}, 2, {FRONT: (64, 64, 3)})
    with pytest.raises(DataError, match="no column 'image_front'"):
        data.require({FRONT: 3})


def test_a_replay_buffer_keeps_bytes_on_the_host() -> None:
    rows = demo_transitions(make_data(), SPEC, lambda action: action)
    buffer = ReplayBuffer(SPEC, 10)
    buffer.add(obs=rows.obs, action=rows.action, reward=rows.reward, terminated=rows.terminated, next_obs=rows.next_obs)
    drawn = buffer.rows(torch.tensor([1, 0]))
    assert rows.obs[FRONT].dtype == drawn.obs[FRONT].dtype == torch.uint8
    assert drawn.obs[FRONT].equal(rows.obs[FRONT][[1, 0]]) and drawn.next_obs[FRONT].equal(rows.next_obs[FRONT][[1, 0]])
    held = sum(column.numel() * column.element_size() for column in buffer._columns.values())
    numbers = 10 * (2 * 2 * 3 + 2 * 2 + 1) * 4 + 10
    assert held == numbers + 10 * 2 * 2 * 8 * 6 * 3  # two pictures of two steps, one byte per number
    other = ReplayBuffer(SPEC, 10)
    other.load_state_dict(buffer.state_dict())
    assert other.rows(torch.tensor([1])).obs[FRONT].equal(rows.obs[FRONT][[1]])
