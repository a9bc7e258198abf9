from collections import deque

import numpy as np
import pytest

from robopo.deploy.checkpoint_spec import read_policy_spec
from robopo.deploy.chunking import RequestMargin, joint_rows, stack_history, timed_chunk, unstack_history
from robopo.deploy.config import DeployConfig
from robopo.deploy.realtime import Pacer, timing
from robopo.deploy.recorder import Frame, Recorder, demo_data
from robopo.errors import CheckpointError, ConfigError, ShapeError
from tests.unit.deploy.dummies import add_deltas, write_checkpoint


def test_rows_begin_with_the_reference_and_follow_the_resolver():
    chunk = np.array([[0.1, 0, 0, 0.05], [0.1, 0, 0.2, 0.06]])
    rows = joint_rows(add_deltas, np.array([1.0, 2.0, 3.0]), 0.01, chunk, has_gripper=True)
    np.testing.assert_allclose(rows, [[1, 2, 3, 0.01], [1.1, 2, 3, 0.05], [1.2, 2, 3.2, 0.06]])
    assert joint_rows(add_deltas, np.zeros(3), 0.0, chunk, has_gripper=False).shape == (3, 3)


def test_a_resolver_of_another_arm_is_named():
    with pytest.raises(ShapeError, match="resolver"):
        joint_rows(lambda q, g, c: (np.zeros((2, 7)), c[:, 0]), np.zeros(3), 0.0, np.zeros((2, 4)), has_gripper=True)


def test_the_last_row_is_held_for_a_late_successor():
    rows = np.arange(6.0).reshape(3, 2)
    chunk = timed_chunk(rows, seq=4, obs_seq=9, t_obs_s=1.0, t0_s=1.0, dt_s=0.1, hold_rows=2)
    assert chunk.values[-3:].tolist() == [[4, 5]] * 3
    assert chunk.t_end_s == pytest.approx(1.5)


def test_margin_is_the_95th_percentile_plus_a_tick_and_bounded():
    margin = RequestMargin(0.5, tick_s=0.01, most_s=0.1)
    assert margin.seconds == 0.1
    for delay in np.linspace(0.0, 0.05, 21):
        margin.add(delay)
    assert margin.seconds == pytest.approx(0.0475 + 0.01)


def test_history_is_padded_with_its_oldest_frame_and_survives_flattening():
    frames = deque([{"a": np.array([1.0, 2.0]), "b": np.array([3.0])}], maxlen=2)
    flat = stack_history(frames, ["a", "b"])
    assert flat.tolist() == [1, 2, 1, 2, 3, 3]
    frames.append({"a": np.array([4.0, 5.0]), "b": np.array([6.0])})
    entries = unstack_history(stack_history(frames, ["a", "b"]), {"a": 2, "b": 1}, 2)
    assert entries["a"].tolist() == [[1, 2], [4, 5]] and entries["b"].tolist() == [[3], [6]]


def test_checkpoint_errors_name_the_file(tmp_path):
    with pytest.raises(CheckpointError, match=r"config\.json"):
        read_policy_spec(tmp_path)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="no 'spec'"):
        read_policy_spec(tmp_path)
    (tmp_path / "config.json").write_text('{"spec": {"obs": {"state": 3}}}')
    with pytest.raises(CheckpointError, match="incomplete"):
        read_policy_spec(tmp_path)


def test_a_chunk_longer_than_the_open_loop_limit_is_refused_before_anything_moves(tmp_path):
    policy = read_policy_spec(write_checkpoint(tmp_path / "p", action_steps=16, horizon=16))
    with pytest.raises(ConfigError, match="open_loop_s"):
        DeployConfig().check_policy(policy)


def frame(value: float, rules: int = 0) -> Frame:
    vector = np.full(4, value)
    return Frame(value, {"state": np.full(2, value, np.float32)}, vector.astype(np.float32), vector + 1, vector, rules)


def test_recorder_writes_whole_episodes_once():
    written = []
    recorder = Recorder(written.append)
    recorder.add(frame(0.0))
    recorder.add(frame(1.0, rules=1 << 4))
    recorder.end(True)
    recorder.end(False)
    recorder.close()
    recorder.close()
    ((episode,),) = written
    assert episode.obs["state"].shape == (2, 2)
    assert episode.altered.tolist() == [False, True]
    assert episode.success is True
    data = demo_data([episode], control_hz=20.0, task="tiny")
    assert data.action.tolist() == [[0] * 4, [1] * 4] and data.action_mode == "joint_position"


def test_a_late_turn_shifts_the_schedule():
    pacer = Pacer(0.01)
    assert pacer.woke(1.0) == pytest.approx(1.01)
    assert pacer.woke(1.011) == pytest.approx(1.02)
    assert pacer.woke(1.1) == pytest.approx(1.1)
    assert pacer.lateness_s == pytest.approx([0, 0.001, 0.08])
    assert timing(pacer.periods_s).max_ms == pytest.approx(89)
    assert timing([]).samples == 0
