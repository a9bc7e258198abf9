"""Demonstrations are checked at construction and the message says where the fault is."""

from __future__ import annotations

import numpy as np
import pytest

from robopo.data.demo import Columns, DemoData, Episode
from robopo.data.stats import column_stats, demo_stats
from robopo.errors import DataError


def make_episode(length: int, start: float = 0.0, success: bool | None = True) -> Episode:
    """state counts up by one per frame from ``start``, action is ten times that."""
    state = start + np.arange(length, dtype=np.float32)[:, None] * np.ones((1, 2), np.float32)
    return Episode({"state": state}, 10 * state[:, :1], success)


def make_data(*lengths: int) -> DemoData:
    return DemoData.from_episodes(
        [make_episode(n, 100 * i) for i, n in enumerate(lengths)],
        control_hz=20,
        features={"state": Columns(("x", "y"), ("m", "m"))},
    )


def test_episodes_are_joined_in_order() -> None:
    data = make_data(3, 2)
    assert (data.num_episodes, data.num_frames, data.action_dim) == (2, 5, 1)
    np.testing.assert_array_equal(data.episode_index, [0, 0, 0, 1, 1])
    np.testing.assert_array_equal(data.starts, [0, 3])
    np.testing.assert_array_equal(data.lengths, [3, 2])
    np.testing.assert_array_equal(data.action[:, 0], [0, 10, 20, 1000, 1010])
    np.testing.assert_array_equal(data.episode(1).obs["state"], [[100, 100], [101, 101]])
    assert data.success is not None and data.success.all()
    assert data.features["state"].names == ("x", "y")
    assert data.features["action"].names == ("action_0",)


def test_zero_demonstrations() -> None:
    with pytest.raises(DataError, match="zero demonstrations"):
        DemoData.from_episodes([], control_hz=20)
    with pytest.raises(DataError, match="zero demonstrations"):
        DemoData({"state": np.zeros((0, 2))}, np.zeros((0, 1)), np.zeros(0, np.int64), control_hz=20)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_bad_value_is_named_by_episode_frame_and_element(value: float) -> None:
    good, bad = make_episode(3), make_episode(4)
    bad.obs["state"][2, 1] = value
    with pytest.raises(DataError, match=r"episode 1, frame 2, column 'state' element 'y'.*exclude_episodes"):
        DemoData.from_episodes([good, bad], control_hz=20, features={"state": Columns(("x", "y"), ("m", "m"))})


def test_missing_column_suggests_a_close_name() -> None:
    data = make_data(3)
    with pytest.raises(DataError, match="no column 'sate'; did you mean 'state'"):
        data.require({"sate": 2})
    other = Episode({"stat": np.zeros((3, 2))}, np.zeros((3, 1)))
    with pytest.raises(DataError, match="episode 1 has no column 'state'; did you mean 'stat'"):
        DemoData.from_episodes([make_episode(3), other], control_hz=20)


def test_dimensions_that_differ_from_the_expected_ones() -> None:
    data = make_data(3)
    data.require({"state": 2}, action_dim=1)
    with pytest.raises(DataError, match=r"actions have 1 elements .*expected 7"):
        data.require({"state": 2}, action_dim=7)
    with pytest.raises(DataError, match=r"'state' has 2 elements \(x, y\), expected 3"):
        data.require({"state": 3})


def test_lengths_must_agree() -> None:
    with pytest.raises(DataError, match="'state' has 3 frames, the actions 2"):
        DemoData({"state": np.zeros((3, 2))}, np.zeros((2, 1)), np.zeros(2, np.int64), control_hz=20)
    with pytest.raises(DataError, match="without gaps"):
        DemoData({"state": np.zeros((2, 2))}, np.zeros((2, 1)), np.array([0, 2]), control_hz=20)
    with pytest.raises(DataError, match="2 success flags for 1 episodes"):
        DemoData({"s": np.zeros((2, 2))}, np.zeros((2, 1)), np.zeros(2), control_hz=20, success=np.ones(2, np.bool_))
    with pytest.raises(DataError, match="control_hz=0"):
        DemoData({"s": np.zeros((2, 2))}, np.zeros((2, 1)), np.zeros(2), control_hz=0)


def test_inputs_are_copied_and_the_copies_are_read_only() -> None:
    state = np.zeros((2, 1), np.float32)
    data = DemoData({"state": state}, np.zeros((2, 1)), np.zeros(2, np.int64), control_hz=20)
    state[:] = 5
    assert data.obs["state"].max() == 0
    with pytest.raises(ValueError, match="read-only"):
        data.obs["state"][0] = 1


def test_fingerprint_depends_on_values_and_on_nothing_else() -> None:
    assert make_data(3, 2).fingerprint == make_data(3, 2).fingerprint
    assert make_data(3, 2).fingerprint != make_data(2, 3).fingerprint


def test_statistics_by_hand() -> None:
    stats = column_stats(np.array([[1.0, 0.0], [3.0, 0.0]]))
    np.testing.assert_array_equal([stats.min, stats.max, stats.mean, stats.std], [[1, 0], [3, 0], [2, 0], [1, 0]])
    assert stats.count == 2
    assert demo_stats(make_data(3))["action"].to_json() == {
        "min": [0.0], "max": [20.0], "mean": [10.0], "std": [pytest.approx(8.16496580927726)], "count": [3]
    }  # fmt: skip
