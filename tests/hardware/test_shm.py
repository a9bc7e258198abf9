import numpy as np
import pytest

from hardware.shm import ShmRing

DTYPE = np.dtype([("t_s", np.float64), ("values", np.float64, (3,)), ("text", "S8")])


@pytest.fixture
def ring():
    with ShmRing(DTYPE, 4) as made:
        yield made


def put(ring, value):
    ring.scratch["t_s"], ring.scratch["values"], ring.scratch["text"] = value, value, b"x"
    return ring.publish()


def test_reader_sees_what_the_writer_published(ring):
    reader = ShmRing(DTYPE, 4, name=ring.name)
    assert reader.latest() is None
    put(ring, 1.5)
    index, record = reader.latest()
    assert index == 0 and record["t_s"] == 1.5 and record["values"].tolist() == [1.5] * 3 and record["text"] == b"x"
    assert reader.latest(newer_than=index) is None
    reader.close()
    reader.close()


def test_only_the_last_slots_are_kept(ring):
    for value in range(6):
        put(ring, value)
    assert ring.read(1) is None
    assert [ring.read(i)["t_s"] for i in range(2, 6)] == [2, 3, 4, 5]
    assert ring.read(6) is None


def test_a_torn_record_is_not_returned_and_the_slot_recovers(ring):
    put(ring, 1.0)
    ring._locks[0][0] += 1  # a writer died half way
    assert ring.read(0) is None
    for value in range(4):
        put(ring, value)
    assert ring.latest()[1]["t_s"] == 3
    ring._bytes[ring._start(ring.count - 1)] ^= 0xFF  # a store that never arrived
    assert ring.latest() is None


def test_another_dtype_is_refused(ring):
    with pytest.raises(ValueError, match="another dtype"):
        ShmRing(np.dtype([("x", np.float64, (4000,))]), 4, name=ring.name)
