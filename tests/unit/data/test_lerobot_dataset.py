"""Our folders open in LeRobot, LeRobot's folders open here, and a damaged folder says what is wrong."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robopo.data import lerobot
from robopo.data.demo import Columns, DemoData
from robopo.data.lerobot import read_lowdim, write_lerobot
from robopo.errors import DataError

FRAMES = "data/chunk-000/file-000.parquet"


def make_data() -> DemoData:
    rng = np.random.default_rng(0)
    return DemoData(
        obs={"state": rng.normal(size=(5, 3)), "environment_state": rng.normal(size=(5, 1))},
        action=rng.normal(size=(5, 2)),
        episode_index=np.array([0, 0, 0, 1, 1]),
        control_hz=20,
        action_mode="ee_delta",
        task="lift",
        instruction="lift the cube",
        features={"action": Columns(("dx", "gripper"), ("m", "m"))},
        success=np.array([True, False]),
    )


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return write_lerobot(tmp_path / "demos", make_data())


def replace_columns(folder: Path, drop: str, **values: Any) -> None:
    table = pq.read_table(folder / FRAMES).drop_columns([drop])
    for name, value in values.items():
        table = table.append_column(name, value)
    pq.write_table(table, folder / FRAMES)


def test_round_trip(folder: Path) -> None:
    written, read = make_data(), read_lowdim(folder)
    assert read.fingerprint == written.fingerprint
    assert (read.control_hz, read.action_mode, read.task, read.instruction) == (20, "ee_delta", "lift", "lift the cube")
    assert read.features == written.features
    np.testing.assert_array_equal(read.success, [True, False])
    assert not list(folder.parent.glob(".*")), "temporary folders must be gone"


def test_reading_needs_neither_lerobot_nor_torch(folder: Path) -> None:
    import subprocess

    code = (
        f"import sys; from robopo.data.lerobot import read_lowdim; read_lowdim({str(folder)!r});"
        "sys.exit(sum(name in sys.modules for name in ('torch', 'lerobot')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_many_files_are_read_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lerobot, "FILE_SIZE_MB", 1e-4)
    folder = write_lerobot(tmp_path / "demos", make_data())
    assert len(list(folder.glob("data/*/*.parquet"))) == 2
    assert read_lowdim(folder).fingerprint == make_data().fingerprint


def test_an_existing_folder_is_kept_unless_told_otherwise(folder: Path) -> None:
    with pytest.raises(DataError, match=r"exists already.*overwrite=True"):
        write_lerobot(folder, make_data())
    write_lerobot(folder, make_data(), overwrite=True)
    assert read_lowdim(folder).num_frames == 5


def test_a_failed_write_leaves_the_old_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(lerobot, "_write_tasks", fail)
    with pytest.raises(OSError, match="disk full"):
        write_lerobot(folder, make_data(), overwrite=True)
    assert read_lowdim(folder).fingerprint == make_data().fingerprint
    assert not list(folder.parent.glob(".*"))


def test_missing_column(folder: Path) -> None:
    with pytest.raises(DataError, match=r"missing column 'observation.stat'.*did you mean 'observation.state'"):
        read_lowdim(folder, keys=["stat"])
    info = json.loads((folder / "meta/info.json").read_text())
    del info["features"]["action"]
    (folder / "meta/info.json").write_text(json.dumps(info))
    with pytest.raises(DataError, match="missing column 'action'"):
        read_lowdim(folder)


def test_column_declared_but_absent_from_the_files(folder: Path) -> None:
    replace_columns(folder, "action")
    with pytest.raises(DataError, match=r"missing column 'action' in .*parquet, though"):
        read_lowdim(folder)


def test_nan_is_named_and_its_episode_can_be_left_out(folder: Path) -> None:
    state = make_data().obs["state"].copy()
    state[4, 2] = np.nan
    column = pa.FixedSizeListArray.from_arrays(pa.array(state.reshape(-1)), 3)
    replace_columns(folder, "observation.state", **{"observation.state": column})
    with pytest.raises(DataError, match="nan in episode 1, frame 1, column 'state' element 'state_2'"):
        read_lowdim(folder)
    assert read_lowdim(folder, exclude_episodes=[1]).lengths.tolist() == [3]
    with pytest.raises(DataError, match="zero demonstrations"):
        read_lowdim(folder, exclude_episodes=[0, 1])


def test_zero_demonstrations_and_foreign_folders(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"info.json doesn't exist; is .* the folder of a LeRobotDataset"):
        read_lowdim(tmp_path)
    info = json.loads((folder / "meta/info.json").read_text())
    (folder / "meta/info.json").write_text(json.dumps({**info, "codebase_version": "v2.1"}))
    with pytest.raises(DataError, match=r"format v2.1, expected v3.0; convert"):
        read_lowdim(folder)
    (folder / "meta/info.json").write_text(json.dumps(info))
    shutil.rmtree(folder / "data")
    with pytest.raises(DataError, match="zero demonstrations"):
        read_lowdim(folder)
    (folder / "meta/info.json").write_text("{")
    with pytest.raises(DataError, match="not valid JSON"):
        read_lowdim(folder)


def test_truncated_parquet(folder: Path) -> None:
    (folder / FRAMES).write_bytes((folder / FRAMES).read_bytes()[:200])
    with pytest.raises(DataError, match="can't read columns"):
        read_lowdim(folder)


def test_fractional_rate_is_refused(tmp_path: Path) -> None:
    data = DemoData({"s": np.zeros((1, 1))}, np.zeros((1, 1)), np.zeros(1), control_hz=12.5)
    with pytest.raises(DataError, match=r"control_hz=12.5.*whole frames"):
        write_lerobot(tmp_path / "demos", data)


def test_lerobot_opens_our_folder_and_we_open_its(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One test, because importing lerobot takes about ten seconds."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(tmp_path / "hf"))
    from lerobot.datasets import LeRobotDataset

    data = make_data()
    loaded = LeRobotDataset("local/demos", root=folder)
    assert (loaded.num_episodes, loaded.num_frames, loaded.fps) == (2, 5, 20)
    assert loaded.meta.features["action"]["names"] == ["dx", "gripper"]
    frame = loaded[4]
    np.testing.assert_array_equal(frame["observation.state"], data.obs["state"][4])
    np.testing.assert_array_equal(frame["action"], data.action[4])
    assert frame["observation.environment_state"].item() == data.obs["environment_state"][4, 0]
    assert (frame["task"], frame["frame_index"].item(), frame["episode_index"].item()) == ("lift the cube", 1, 1)
    np.testing.assert_allclose(loaded.meta.stats["action"]["max"], data.action.max(axis=0))

    features = {
        "observation.state": {"dtype": "float32", "shape": (2,), "names": {"motors": ["a", "b"]}},
        "action": {"dtype": "float32", "shape": (1,), "names": None},
    }
    theirs = LeRobotDataset.create("local/theirs", 10, features, root=tmp_path / "theirs", use_videos=False)
    for episode, length in enumerate((2, 3)):
        for i in range(length):
            state = np.array([episode, i], np.float32)
            theirs.add_frame({"observation.state": state, "action": state[1:], "task": "push"})
        theirs.save_episode()
    theirs.finalize()
    read = read_lowdim(tmp_path / "theirs")
    np.testing.assert_array_equal(read.obs["state"], [[0, 0], [0, 1], [1, 0], [1, 1], [1, 2]])
    np.testing.assert_array_equal(read.action[:, 0], [0, 1, 0, 1, 2])
    assert (read.control_hz, read.instruction, read.success, read.action_mode) == (10, "push", None, "")
    assert read.features["state"].names == ("a", "b")
