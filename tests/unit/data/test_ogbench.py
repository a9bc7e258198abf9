"""OGBench's layout, by hand: two episodes of three rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robopo.data.ogbench import MaskMode, is_ogbench, read_ogbench, write_ogbench
from robopo.errors import DataError


def rows(**changed: Any) -> dict[str, np.ndarray]:
    columns: dict[str, Any] = {
        "observations": np.arange(12, dtype=np.float32).reshape(6, 2),
        "actions": np.linspace(-1, 1, 6, dtype=np.float32)[:, None],
        "terminals": np.array([0, 0, 1, 0, 0, 1], bool),
        "rewards": np.array([-1, 0, -1, -1, -1, -1], np.float32),
        "masks": np.array([1, 0, 1, 1, 1, 1], np.float32),
        "qpos": np.arange(6, dtype=np.float32)[:, None],
    }
    return {name: array for name, array in {**columns, **changed}.items() if array is not None}


def saved(folder: Path, **changed: Any) -> Path:
    np.savez(folder / "x.npz", **rows(**changed))
    return folder / "x.npz"


def test_the_last_row_of_an_episode_is_only_the_next_observation(tmp_path: Path) -> None:
    data = read_ogbench(saved(tmp_path))
    assert data.obs[:, 0].tolist() == [0, 2, 6, 8] and data.next_obs[:, 0].tolist() == [2, 4, 8, 10]
    assert data.episode_index.tolist() == [0, 0, 1, 1] and data.ends.tolist() == [False, True, False, True]
    assert data.reward is not None and data.reward.tolist() == [-1, 0, -1, -1]
    assert data.returns.tolist() == [-1, -2]
    assert data.extras["qpos"][:, 0].tolist() == [0, 1, 3, 4]
    with pytest.raises(ValueError, match="read-only"):
        data.obs[0, 0] = 1.0


def test_masks_are_the_task_s_or_the_trajectory_s(tmp_path: Path) -> None:
    path = saved(tmp_path)
    task, ends = read_ogbench(path).mask, read_ogbench(path, mask_mode=MaskMode.TRAJ_END).mask
    assert task is not None and task.tolist() == [1, 0, 1, 1]
    assert ends is not None and ends.tolist() == [1, 0, 1, 0]


def test_actions_can_be_kept_off_the_bounds(tmp_path: Path) -> None:
    assert read_ogbench(saved(tmp_path), clip=0.5).action[:, 0].min() == -0.5


def test_what_is_written_is_read(tmp_path: Path) -> None:
    """One episode that ended by itself, one whose time was up."""
    path = tmp_path / "new" / "x.npz"
    obs, index = np.arange(10.0).reshape(5, 2), np.array([0, 0, 1, 1, 1])
    final = np.array([[90.0, 91.0], [92.0, 93.0]])
    given = {"obs": obs, "action": obs[:, :1] / 10, "reward": np.arange(5.0), "episode_index": index}
    digest = write_ogbench(path, **given, final_obs=final, terminated=np.array([True, False]))
    data = read_ogbench(path)
    assert is_ogbench(path) and data.fingerprint == digest and len(data) == 5
    np.testing.assert_array_equal(data.obs, obs)
    np.testing.assert_array_equal(data.next_obs[[1, 4]], final)
    assert data.mask is not None and data.mask.tolist() == [1, 0, 1, 1, 1]
    assert data.returns.tolist() == [1.0, 9.0]
    assert data.to_demo(task="x").num_episodes == 2
    with pytest.raises(DataError, match="overwrite=true"):
        write_ogbench(path, **given, final_obs=final, terminated=np.array([True, False]))
    again = write_ogbench(path, **given, final_obs=final, terminated=np.array([True, False]), overwrite=True)
    assert again == digest


def test_without_a_task_there_are_no_returns(tmp_path: Path) -> None:
    data = read_ogbench(saved(tmp_path, rewards=None, masks=None))
    assert data.reward is None and data.mask is None
    with pytest.raises(DataError, match="--relabel"):
        _ = data.returns


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"terminals": None}, "missing column 'terminals'"),
        ({"terminals": np.zeros(6, bool)}, "cut off"),
        ({"terminals": np.ones(6, bool)}, "no transition"),
        ({"actions": np.zeros((5, 1), np.float32)}, "lengths must agree"),
        ({"observations": np.zeros((6, 4, 4, 3), np.uint8)}, "no pictures"),
        ({"rewards": np.full(6, np.nan, np.float32)}, "first in transition 0"),
    ],
)
def test_a_broken_file_is_refused(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(DataError, match=said):
        read_ogbench(saved(tmp_path, **changed))
    with pytest.raises(DataError, match="doesn't exist"):
        read_ogbench(tmp_path / "nowhere.npz")
