"""What of generating OGBench's data needs no OGBench."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from sims.ogbench_data import (
    Generation,
    cube_in_sight,
    fingerprint,
    generate,
    main,
    open_parts,
    save,
    stacking,
    validation_path,
)


def test_steps_are_rounded_up_to_episodes_and_a_tenth_is_for_validation() -> None:
    assert (Generation(steps=1001).train_episodes, Generation(steps=1001).episodes) == (1, 2)
    assert (Generation(steps=1002).train_episodes, Generation(steps=30 * 1001).episodes) == (2, 33)


def test_ranges_of_the_published_data() -> None:
    found = {env: stacking(env) for env in ("cube-single", "cube-double", "cube-octuple", "scene", "puzzle-3x3")}
    expected = {"cube-single": (0.0, 0.0), "cube-double": (0.0, 0.25), "cube-octuple": (0.0, 0.35)}
    assert found == {**expected, "scene": (0.5, 0.5), "puzzle-3x3": (0.5, 0.5)}


def test_a_cube_is_lost_beside_the_table_but_not_in_the_drawer() -> None:
    qpos = np.zeros((3, 21))
    assert cube_in_sight(qpos)
    for y, z, seen in ((0.3, 0.02, False), (-0.31, 0.02, False), (-0.31, 0.07, True), (0.2, 0.3, True)):
        qpos[1, 15:17] = y, z
        assert cube_in_sight(qpos) == seen


def test_equal_arrays_make_equal_bytes(tmp_path: Path) -> None:
    arrays = {"b": np.arange(3.0), "a": np.ones((2, 2), np.float32)}
    for name in ("x.npz", "y.npz"):
        save(tmp_path / name, arrays)
    assert (tmp_path / "x.npz").read_bytes() == (tmp_path / "y.npz").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npz", "y.npz"]
    assert fingerprint(arrays) == fingerprint(dict(reversed(arrays.items())))
    assert fingerprint(arrays) != fingerprint({**arrays, "b": np.arange(3.0, dtype=np.float32)})


def test_parts_of_another_generation_are_refused(tmp_path: Path) -> None:
    open_parts(tmp_path / "p", Generation())
    open_parts(tmp_path / "p", Generation())
    with pytest.raises(ValueError, match="seed=0"):
        open_parts(tmp_path / "p", Generation(seed=1))


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"env": "cubes"}, "cube-single"),
        ({"kind": "medium"}, "play, noisy"),
        ({"episode_steps": 1}, "episode_steps=1"),
        ({"p_random": 1.5}, "p_random=1.5"),
    ],
)
def test_wrong_settings_are_refused(changed: dict, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        Generation(**changed)


def test_nothing_is_overwritten(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "x.npz"
    validation_path(path).touch()
    with pytest.raises(ValueError, match="exists"):
        generate(Generation(), path)
    with pytest.raises(ValueError, match=r"ends in \.npz"):
        generate(Generation(), tmp_path / "x")
    assert main(["--relabel", str(path)]) == 2 and "--task" in capsys.readouterr().err
