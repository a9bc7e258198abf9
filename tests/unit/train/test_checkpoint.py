from __future__ import annotations

import errno
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors import SafetensorError

from robopo.errors import CheckpointError
from robopo.train import checkpoint as module
from robopo.train.checkpoint import (
    find_checkpoint,
    latest_checkpoint,
    load_checkpoint,
    save_checkpoint,
    set_aside_after,
    verify_checkpoint,
)
from robopo.train.tree import decode_tree, encode_tree

from .trees import assert_trees_equal


def write_policy(folder: Path) -> None:
    (folder / "config.json").write_text("{}")


def save(run: Path, step: int, **kwargs: Any) -> Path:
    state = {"weights": torch.arange(6.0), "step": step}
    return save_checkpoint(run, step, state, write_policy=write_policy, **kwargs)


def rich_state() -> dict[str, Any]:
    layer = torch.nn.Linear(3, 2)
    optimizer = torch.optim.AdamW(layer.parameters())
    layer(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    shared = torch.ones(4)
    return {
        "optimizer": optimizer.state_dict(),  # integer keys, tuples (betas), None
        "module": dict(layer.state_dict()),
        "torch_rng": torch.Generator().manual_seed(3).get_state(),
        "numpy_rng": np.random.default_rng(3).bit_generator.state,  # 128-bit integers
        "legacy_rng": np.random.RandomState(1).get_state(),  # a tuple with an array in it
        "sim": {"qpos": np.random.default_rng(0).normal(size=(2, 3)), "flags": np.array([True, False])},
        "wide": np.array([2**63 + 1], dtype=np.uint64),
        "names": np.array(["a", "long name"]),
        "scalar": np.float32(0.1),
        "nan": float("inf"),
        "views": [shared, shared[:2], torch.zeros(2, 3).t()],
        "empty": {"dict": {}, "array": np.zeros((0, 4)), "zero_dim": torch.tensor(2)},
        "__tree__": "a key that looks like our tag",
    }


def test_tree_round_trip_is_exact() -> None:
    state = rich_state()
    assert_trees_equal(decode_tree(*encode_tree(state)), state)


@pytest.mark.parametrize("value", [object(), np.array([object()]), {1.5: 2}])
def test_tree_names_what_it_cannot_hold(value: object) -> None:
    with pytest.raises(CheckpointError, match=r"state\.a\.b"):
        encode_tree({"a": {"b": value}})


def test_save_then_load(tmp_path: Path) -> None:
    folder = save_checkpoint(tmp_path, 12, rich_state() | {"module": {}, "optimizer": {}}, write_policy=write_policy)
    assert folder == tmp_path / "checkpoints" / "step_00000012"
    assert (folder / "config.json").read_text() == "{}"
    loaded = load_checkpoint(folder)
    assert loaded.step == 12
    assert_trees_equal(loaded.state, rich_state() | {"module": {}, "optimizer": {}})


def test_keeps_the_newest(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=2)
    assert sorted(p.name for p in (tmp_path / "checkpoints").iterdir()) == ["step_00000003", "step_00000004"]


@pytest.mark.parametrize("name", ["config.json", "training_state.safetensors", "training_state.json", "manifest.json"])
@pytest.mark.parametrize("damage", ["truncate", "flip", "delete"])
def test_damage_is_found_and_skipped(tmp_path: Path, name: str, damage: str, caplog: pytest.LogCaptureFixture) -> None:
    good, bad = save(tmp_path, 1), save(tmp_path, 2)
    path = bad / name
    data = path.read_bytes()
    if damage == "delete":
        path.unlink()
    else:
        path.write_bytes(data[:-1] if damage == "truncate" else bytes([data[0] ^ 1]) + data[1:])
    with pytest.raises(CheckpointError, match=r"step_00000002.*resume from an earlier checkpoint"):
        load_checkpoint(bad)
    assert latest_checkpoint(tmp_path) == good
    assert "skipping a damaged checkpoint" in caplog.text
    assert save(tmp_path, 2) == bad  # writing the step again repairs it
    assert latest_checkpoint(tmp_path) == bad


def full_disk(error: Exception) -> Any:
    def write(path: Path, data: bytes) -> None:
        path.write_bytes(data[: len(data) // 2])
        raise error

    return write


@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)), SafetensorError("IoError: No space left on device")]
)
def test_full_disk_keeps_the_last_good_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    good = save(tmp_path, 1)
    monkeypatch.setattr(module, "_write_bytes", full_disk(error))
    with pytest.raises(CheckpointError, match=r"disk full .*step_00000001 is intact.*Free some space"):
        save(tmp_path, 2)
    assert [p.name for p in (tmp_path / "checkpoints").iterdir()] == [good.name]
    assert verify_checkpoint(good) == 1


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 256 KiB, where root may mount one."""
    point = tmp_path / "disk"
    point.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", str(point)]
    try:
        subprocess.run(command, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("mounting a tmpfs needs root")
    yield point
    subprocess.run(["umount", str(point)], check=True)


def test_really_full_disk(tiny_disk: Path) -> None:
    good = save(tiny_disk, 1)
    with pytest.raises(CheckpointError, match="disk full"):
        save_checkpoint(tiny_disk, 2, {"big": torch.zeros(100_000)}, write_policy=write_policy)
    assert latest_checkpoint(tiny_disk) == good
    assert save(tiny_disk, 3).is_dir()  # there is room again


def test_interrupted_save_leaves_nothing(tmp_path: Path) -> None:
    def interrupted(folder: Path) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        save_checkpoint(tmp_path, 1, {}, write_policy=interrupted)
    assert list((tmp_path / "checkpoints").iterdir()) == []


def test_leftovers_of_a_killed_save_are_ignored_then_removed(tmp_path: Path) -> None:
    good = save(tmp_path, 1)
    leftover = tmp_path / "checkpoints" / ".tmp_step_00000002"
    leftover.mkdir()
    (leftover / "half").write_text("x")
    assert latest_checkpoint(tmp_path) == good
    save(tmp_path, 3)
    assert not leftover.exists()


def test_find_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="does not exist"):
        find_checkpoint(tmp_path / "nowhere")
    (tmp_path / "checkpoints").mkdir()
    with pytest.raises(CheckpointError, match="no usable checkpoint"):
        find_checkpoint(tmp_path)
    folder = save(tmp_path, 7)
    assert find_checkpoint(tmp_path) == find_checkpoint(folder) == folder


def test_set_aside_after(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        save(tmp_path, step)
    set_aside_after(tmp_path, 1)
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step_00000001"
    assert (tmp_path / "checkpoints" / "superseded_step_00000003").is_dir()
