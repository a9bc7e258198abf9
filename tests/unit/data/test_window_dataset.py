"""Windows by hand: one demonstration of frames 0..3 and one of frames 4..5."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robopo.data.demo import DemoData
from robopo.data.sampler import WindowDataset, WindowEnd, split_episodes
from robopo.errors import ConfigError, DataError


def make_data(*lengths: int) -> DemoData:
    """state and action of a frame are its number."""
    frames = np.arange(sum(lengths), dtype=np.float32)[:, None]
    return DemoData({"state": frames}, frames, np.repeat(np.arange(len(lengths)), lengths), control_hz=10)


def test_padded_windows() -> None:
    windows = WindowDataset(make_data(4, 2), obs_steps=2, horizon=3)
    (batch,) = windows.batches(100)
    assert batch.obs["state"].shape == (6, 2, 1)
    assert batch.obs["state"].squeeze(-1).tolist() == [[0, 0], [0, 1], [1, 2], [2, 3], [4, 4], [4, 5]]
    assert batch.action.squeeze(-1).tolist() == [[0, 1, 2], [1, 2, 3], [2, 3, 3], [3, 3, 3], [4, 5, 5], [5, 5, 5]]
    expected = [[0, 0, 0], [0, 0, 0], [0, 0, 1], [0, 1, 1], [0, 0, 1], [0, 1, 1]]
    assert batch.pad_mask.long().tolist() == expected


def test_windows_fully_inside() -> None:
    windows = WindowDataset(make_data(4, 2), obs_steps=1, horizon=3, end=WindowEnd.INSIDE)
    (batch,) = windows.batches(100)
    assert batch.action.squeeze(-1).tolist() == [[0, 1, 2], [1, 2, 3]]
    assert not batch.pad_mask.any()
    with pytest.raises(DataError, match=r"no window of 5 actions fits .* longest has 4"):
        WindowDataset(make_data(4, 2), obs_steps=1, horizon=5, end=WindowEnd.INSIDE)


def test_chosen_episodes_only() -> None:
    windows = WindowDataset(make_data(4, 2, 3), obs_steps=1, horizon=1, episodes=[2, 1])
    (batch,) = windows.batches(100)
    assert batch.action.flatten().tolist() == [4, 5, 6, 7, 8]
    with pytest.raises(DataError, match="zero demonstrations chosen"):
        WindowDataset(make_data(4), obs_steps=1, horizon=1, episodes=[])
    with pytest.raises(DataError, match=r"episodes 0\.\.3 chosen, the dataset has 0\.\.0"):
        WindowDataset(make_data(4), obs_steps=1, horizon=1, episodes=[0, 3])


def test_shuffled_batches_visit_every_window_once_and_repeat_with_the_seed() -> None:
    windows = WindowDataset(make_data(7, 4), obs_steps=1, horizon=2)

    def visit(seed: int) -> list[float]:
        batches = list(windows.batches(4, torch.Generator().manual_seed(seed)))
        assert [len(batch.action) for batch in batches] == [4, 4, 3]
        return torch.cat([batch.action[:, 0, 0] for batch in batches]).tolist()

    assert sorted(visit(0)) == list(range(11))
    assert visit(0) == visit(0)
    assert visit(0) != visit(1)
    assert [len(batch.action) for batch in windows.batches(4, drop_last=True)] == [4, 4]
    assert [len(batch.action) for batch in windows.batches(40, drop_last=True)] == [11]


def test_split_keeps_demonstrations_whole() -> None:
    data = make_data(*[2] * 10)
    train, validation = split_episodes(data, 0.2, seed=0)
    assert len(validation) == 2
    assert sorted([*train, *validation]) == list(range(10))
    assert split_episodes(data, 0.2, seed=0) == (train, validation)
    assert split_episodes(data, 0.01, seed=0)[1] != ()
    assert split_episodes(data, 0.0, seed=0) == (tuple(range(10)), ())
    with pytest.raises(ConfigError, match=r"validation_fraction=1.0"):
        split_episodes(data, 1.0, seed=0)
    with pytest.raises(DataError, match="can't be split"):
        split_episodes(make_data(3), 0.5, seed=0)
