import numpy as np
import pytest

from hardware.interlocks import lasting_speed, row_at
from hardware.types import ActionChunk
from tests.hardware.rig import N, Rig


def chunk(*rows, t0_s=10.0, dt_s=0.1):
    return ActionChunk(1, 1, t0_s, t0_s, dt_s, np.array(rows, dtype=float))


def test_rows_are_due_by_time_and_linear_between():
    path = chunk([0, 1], [1, 3], [1, 3])
    assert row_at(path, 9.0).tolist() == [0, 1]
    assert row_at(path, 10.05) == pytest.approx([0.5, 2.0])
    assert row_at(path, 10.1) == pytest.approx([1, 3])
    assert row_at(path, 11.0).tolist() == [1, 3]
    assert path.t_end_s == pytest.approx(10.3)


def test_lasting_speed_looks_as_far_as_it_takes_to_brake():
    # Speeds per step: joint 0: 1, 1, 0 rad/s; joint 1: 1, 2, -1 rad/s.
    path = chunk([0.0, 0.0], [0.1, 0.1], [0.2, 0.3], [0.2, 0.2])
    assert lasting_speed(path, 10.02, np.array([0.0, 0.0])) == pytest.approx([1, 1])
    assert lasting_speed(path, 10.02, np.array([0.1, 0.1])) == pytest.approx([1, 1])
    assert lasting_speed(path, 10.12, np.array([0.0, 0.0])) == pytest.approx([1, 2])
    assert lasting_speed(path, 10.12, np.array([0.1, 0.1])).tolist() == [0, 0]
    assert lasting_speed(path, 10.35, np.array([0.0, 0.0])).tolist() == [0, 0]
    assert lasting_speed(chunk([0.0, 0.0]), 10.0, np.zeros(2)).tolist() == [0, 0]


def test_the_reference_follows_a_chunk_and_stops_where_it_ends(tmp_path):
    rig = Rig(tmp_path)
    rig.drive(3.0, speed_rad_s=0.3)
    joints = np.tile(rig.gate.due()[0], (6, 1))
    joints[:, 0] += 0.015 * np.minimum(np.arange(6), 3)
    assert rig.gate.submit(rig.chunk(joints))
    rig.tick(28)
    sent = rig.gate.ring.last(28)["sent_rad"][:, 0]
    assert sent.max() <= joints[-1, 0] + 0.004
    assert sent[-1] == pytest.approx(joints[-1, 0], abs=2e-3)


def test_due_is_ahead_of_the_last_tick(tmp_path):
    rig = Rig(tmp_path)
    assert rig.gate.due()[0].tolist() == [0.0] * N
    rig.gate.submit(rig.sweep(0.4))
    rig.tick()
    joints, opening_m = rig.gate.due()
    assert joints[0] - rig.gate.shaper.target[0] == pytest.approx(0.4 * 0.01)
    assert opening_m == pytest.approx(0.02)


def test_running_past_a_target_that_stops_is_the_gates_doing_and_no_jump(tmp_path):
    rig = Rig(tmp_path)
    rig.drive(3.0, speed_rad_s=0.6)
    stop = rig.gate.due()[0].copy()
    for _ in range(3):
        rig.tick(5)
        assert rig.gate.submit(rig.chunk(np.tile(stop, (6, 1))))
    low, high = rig.gate.shaper.band
    assert (low <= high).all() and high[0] > stop[0]
    rig.tick(30)
    assert rig.gate.shaper.output[0] == pytest.approx(stop[0], abs=2e-3)
