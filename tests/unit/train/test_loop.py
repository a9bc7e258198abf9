from __future__ import annotations

import errno
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from robopo.errors import CheckpointError, ConfigError, NonFiniteError
from robopo.train.checkpoint import latest_checkpoint, load_checkpoint
from robopo.train.logger import METRICS, RunLogger, read_metrics
from robopo.train.loop import LoopConfig, TrainResult, train
from robopo.train.stages import Stage

from .toys import ToyWindows, cloning_stage, on_policy_stage, on_policy_stage_with_statistics
from .trees import assert_trees_equal

STAGES = pytest.mark.parametrize("make", [on_policy_stage, on_policy_stage_with_statistics, cloning_stage])


def run(
    stage: Stage, run_dir: Path, iterations: int, *, resume: bool = False, evaluate: Any = None, **config: Any
) -> TrainResult:
    folder = latest_checkpoint(run_dir) if resume else None
    checkpoint = load_checkpoint(folder) if folder else None
    logger = RunLogger(run_dir, resume_step=checkpoint.step if checkpoint else None)
    settings = {"eval_every": 1, "checkpoint_every": 2, **config}
    try:
        return train(
            stage,
            LoopConfig(iterations=iterations, **settings),
            run_dir=run_dir,
            logger=logger,
            resume=checkpoint,
            evaluate=evaluate,
        )
    finally:
        logger.close()


def log_without_times(run_dir: Path) -> list[dict[str, Any]]:
    timed = ("time/", "elapsed_s", "steps_per_s", "updates_per_s")
    rows = read_metrics(run_dir / METRICS)
    return [{k: v for k, v in row.items() if not k.startswith(timed)} for row in rows]


@STAGES
def test_four_equal_two_and_two(make: Callable[[], Stage], tmp_path: Path) -> None:
    whole, first, second = make(), make(), make()
    torch.manual_seed(0)
    run(whole, tmp_path / "a", 4)
    torch.manual_seed(0)
    run(first, tmp_path / "b", 2)
    torch.rand(3)  # the resumed process starts with other global generators
    result = run(second, tmp_path / "b", 4, resume=True)
    assert_trees_equal(second.state(), whole.state())
    assert log_without_times(tmp_path / "b") == log_without_times(tmp_path / "a")
    a, b = load_checkpoint(result.checkpoint), load_checkpoint(tmp_path / "a" / "checkpoints" / "step_00000004")
    a.state["elapsed_s"] = b.state["elapsed_s"] = 0.0
    assert_trees_equal(a.state, b.state)


def test_resume_drops_what_was_logged_after_the_checkpoint(tmp_path: Path) -> None:
    run(on_policy_stage(), tmp_path, 4, checkpoint_every=2, keep_checkpoints=5)
    (tmp_path / "checkpoints" / "step_00000004" / "manifest.json").write_text("{")  # damaged: falls back to 2
    with (tmp_path / METRICS).open("a") as file:
        file.write('{"step": 5, "lo')
    run(on_policy_stage(), tmp_path, 4, resume=True)
    assert [row["step"] for row in read_metrics(tmp_path / METRICS)] == [1, 2, 3, 4]


def test_evaluates_first_every_and_last(tmp_path: Path) -> None:
    calls: list[int] = []

    def evaluate(done: int) -> dict[str, float]:
        calls.append(done)
        return {"success": 0.5}

    run(on_policy_stage(), tmp_path, 5, eval_every=2, evaluate=evaluate)
    assert calls == [0, 2, 4, 5]
    assert read_metrics(tmp_path / METRICS)[0] == {"step": 0, "success": 0.5}


def test_counts_steps_and_names_vectors(tmp_path: Path) -> None:
    run(on_policy_stage(), tmp_path, 3)
    last = read_metrics(tmp_path / METRICS)[-1]
    assert last["env_steps"] == 3 * 4 * 3  # iterations * decisions * environments
    assert (last["per_step/0"], last["per_step/1"]) == (0.0, 1.0)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signal_finishes_the_iteration_saves_and_stops(tmp_path: Path, number: signal.Signals, code: int) -> None:
    def evaluate(done: int) -> dict[str, float]:
        if done == 3:
            signal.raise_signal(number)
        return {}

    result = run(on_policy_stage(), tmp_path, 100, evaluate=evaluate, checkpoint_every=50)
    assert (result.iterations, result.stopped_by, result.exit_code) == (3, number, code)
    assert load_checkpoint(result.checkpoint).step == 3


def test_nan_names_the_tensor_and_dumps_a_replayable_batch(tmp_path: Path) -> None:
    stage = on_policy_stage(poison_at=3)
    with pytest.raises(
        NonFiniteError, match=r"batch\.reward \(1 of 12 elements\).*robopo doctor --replay .*step_00000003"
    ):
        run(stage, tmp_path, 10)
    dump = load_checkpoint(tmp_path / "nan" / "step_00000003")
    assert torch.isnan(dump.state["batch"]["reward"][0, 1])
    assert dump.state["learner"]["algorithm"]["count"] == 3  # as it was before the update
    assert latest_checkpoint(tmp_path) == tmp_path / "checkpoints" / "step_00000002"


class FullDisk:
    """A logger whose disk is full from ``step`` on."""

    def __init__(self, step: int) -> None:
        self.step = step

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        if step >= self.step:
            raise OSError(errno.ENOSPC, "No space left on device", METRICS)

    def close(self) -> None: ...


def test_a_log_that_cant_be_written_doesnt_lose_what_was_learned(tmp_path: Path) -> None:
    config = LoopConfig(iterations=10, checkpoint_every=10)
    with pytest.raises(OSError, match="No space left"):
        train(on_policy_stage(), config, run_dir=tmp_path, logger=FullDisk(3))
    newest = latest_checkpoint(tmp_path)
    assert newest is not None
    assert load_checkpoint(newest).step == 3
    resumed, whole = on_policy_stage(), on_policy_stage()
    run(resumed, tmp_path, 4, resume=True)
    run(whole, tmp_path / "whole", 4)
    assert_trees_equal(resumed.state(), whole.state())


def test_a_failed_save_doesnt_hide_the_log_that_failed(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    (tmp_path / "checkpoints").write_text("a file where the folder should be")
    with pytest.raises(OSError, match="No space left"):
        train(on_policy_stage(), LoopConfig(iterations=2), run_dir=tmp_path, logger=FullDisk(1))
    assert "nor its checkpoint" in caplog.text


def test_resume_with_another_network_is_refused(tmp_path: Path) -> None:
    run(on_policy_stage(), tmp_path, 1)
    stage = on_policy_stage()
    stage._modules["policy"] = torch.nn.Linear(5, 5)
    with pytest.raises(CheckpointError, match="does not fit this run"):
        run(stage, tmp_path, 2, resume=True)


def test_zero_iterations_still_leave_a_checkpoint(tmp_path: Path) -> None:
    assert load_checkpoint(run(on_policy_stage(), tmp_path, 0).checkpoint).step == 0


def test_windows_come_once_per_pass(tmp_path: Path) -> None:
    windows = ToyWindows()
    run(cloning_stage(windows=windows), tmp_path, 5)  # 5 * 3 * 8 = 120 = 6 passes over 20 windows
    assert len(windows.seen) == 120
    assert all(sorted(windows.seen[i : i + 20]) == list(range(20)) for i in range(0, 120, 20))


@pytest.mark.parametrize(
    "wrong", [{"iterations": -1}, {"checkpoint_every": 0}, {"keep_checkpoints": 0}, {"eval_every": -1}]
)
def test_config_ranges(wrong: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        LoopConfig(**wrong)
