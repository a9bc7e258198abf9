"""Broken data, impossible settings and a full disk through the command: a clear line, exit code 2, nothing lost."""

from __future__ import annotations

import errno
import shutil
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from robopo.cli.main import main
from robopo.train import logger
from robopo.train.checkpoint import latest_checkpoint, load_checkpoint

TINY = ("sim.num_envs=4", "evaluation.n=4", "evaluation.num_envs=4")


@pytest.fixture(scope="module")
def demos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demos") / "reach"
    assert main(["collect", "sim=reach", "episodes=4", f"out={out}", "sim.num_envs=4"]) == 0
    return out


@pytest.fixture(scope="module")
def cloned(demos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("runs") / "bc"
    argv = ["train", "algo=bc", "sim=reach", f"demos={demos}", f"run_dir={run}", "algo.steps=101", *TINY]
    assert main(argv) == 0
    return run


def clone(demos: Path, tmp_path: Path, *extra: str) -> int:
    argv = ["train", "algo=bc", "sim=reach", f"demos={demos}", f"run_dir={tmp_path / 'run'}", "algo.steps=101", *TINY]
    return main([*argv, *extra])


def copied(demos: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A copy of the dataset and its one parquet file of frames."""
    folder = shutil.copytree(demos, tmp_path / "copy")
    return folder, next((folder / "data").rglob("*.parquet"))


def refused(capsys: pytest.CaptureFixture[str], code: int, *words: str) -> None:
    text = capsys.readouterr().err
    assert code == 2, text
    assert "Traceback" not in text
    for word in words:
        assert word in text


def test_a_missing_column_is_named(demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, frames = copied(demos, tmp_path)
    pq.write_table(pq.read_table(frames).drop(["observation.state"]), frames)
    refused(capsys, clone(folder, tmp_path), "observation.state")


def test_a_nan_is_found_by_episode_and_frame(demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, frames = copied(demos, tmp_path)
    table = pq.read_table(frames)
    values = np.array(table["action"].to_pylist(), np.float32)
    values[2, 1] = np.nan
    index = table.schema.get_field_index("action")
    bad = pa.FixedSizeListArray.from_arrays(pa.array(values.ravel()), values.shape[1])
    pq.write_table(table.set_column(index, "action", bad), frames)
    refused(capsys, clone(folder, tmp_path), "nan", "episode 0", "frame 2", "dy")


def test_actions_of_another_size_in_a_dataset(demos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder, frames = copied(demos, tmp_path)
    table = pq.read_table(frames)
    short = [row[:3] for row in table["action"].to_pylist()]
    index = table.schema.get_field_index("action")
    pq.write_table(table.set_column(index, "action", pa.array(short, pa.list_(pa.float32(), 3))), frames)
    refused(capsys, clone(folder, tmp_path), "action", "3", "7")


def test_a_resume_that_is_refused_leaves_the_run_as_it_was(
    demos: Path, cloned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = shutil.copytree(cloned, tmp_path / "bc")
    before = {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()}
    folder, frames = copied(demos, tmp_path)
    pq.write_table(pq.read_table(frames).drop(["action"]), frames)
    refused(capsys, main(["train", f"resume={run}", f"demos={folder}", "algo.steps=200"]), "action")
    assert {path.relative_to(run): path.read_bytes() for path in run.rglob("*") if path.is_file()} == before
    newest = latest_checkpoint(run)
    assert newest is not None
    load_checkpoint(newest)


def test_zero_demonstrations(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    empty = np.zeros((0, 17), np.float32)
    np.savez(tmp_path / "train.npz", states=empty, actions=empty[:, :7], traj_lengths=np.zeros(0, int))
    refused(capsys, clone(tmp_path / "train.npz", tmp_path), "zero demonstrations")


def test_an_action_dimension_that_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    states, actions = np.zeros((5, 23), np.float32), np.zeros((5, 3), np.float32)
    np.savez(tmp_path / "train.npz", states=states, actions=actions, traj_lengths=np.array([5]))
    refused(capsys, clone(tmp_path / "train.npz", tmp_path), "3 elements", "expected 7")


def test_more_finetuned_steps_than_the_sampler_has(
    cloned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = ["train", "algo=dppo", "sim=reach", f"checkpoint={cloned}", f"run_dir={tmp_path / 'run'}", *TINY]
    refused(capsys, main([*argv, "finetune.ft_steps=9"]), "ft_steps=9", "5 steps")


def test_a_truncated_checkpoint_is_not_used(cloned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = shutil.copytree(cloned, tmp_path / "bc")
    newest = latest_checkpoint(run)
    assert newest is not None
    weights = newest / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:1000])
    refused(capsys, main(["eval", f"checkpoint={newest}", "n=4", "videos=0"]), "model.safetensors")
    assert latest_checkpoint(run) != newest


def test_a_full_disk_keeps_the_last_checkpoint(
    cloned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    settings = ("finetune.num_decisions=2", "loop.iterations=4", "loop.checkpoint_every=1", "loop.eval_every=0")
    real, calls = logger.RunLogger.scalars, []

    def full(self: logger.RunLogger, values: dict[str, float], step: int) -> None:
        calls.append(step)
        if step == 3:
            raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")
        real(self, values, step)

    monkeypatch.setattr(logger.RunLogger, "scalars", full)
    code = main(["train", "algo=dppo", "sim=reach", f"checkpoint={cloned}", f"run_dir={run}", *settings, *TINY])
    refused(capsys, code, "No space left on device", "metrics.jsonl", "resume=")
    kept = latest_checkpoint(run)
    assert kept is not None and load_checkpoint(kept).step == 3  # its log was lost, it was not
    monkeypatch.setattr(logger.RunLogger, "scalars", real)
    assert main(["train", f"resume={run}"]) == 0
    finished = latest_checkpoint(run)
    assert finished is not None and load_checkpoint(finished).step == 4
