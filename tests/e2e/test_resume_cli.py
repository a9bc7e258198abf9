"""The commands on real parts, small: collect, clone, fine-tune, resume bit for bit, evaluate, replay a NaN."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from robopo.cli.main import main
from robopo.train.checkpoint import load_checkpoint
from robopo.train.logger import METRICS, read_metrics
from tests.unit.train.trees import assert_trees_equal

TIMED = ("time/", "elapsed_s", "steps_per_s", "updates_per_s")
SIM = ["sim=reach", "sim.num_envs=4", "evaluation.n=4", "loop.checkpoint_every=1"]
CLONE = ["train", "algo=bc", *SIM, "algo.batch_size=32", "algo.warmup_steps=2", "updates_per_iteration=5"]
FINETUNE = ["train", "algo=dppo", *SIM, "finetune.num_decisions=10", "algo.epochs=1", "loop.eval_every=2"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset and a cloned policy."""
    folder = tmp_path_factory.mktemp("cli")
    demos = folder / "demos"
    assert main(["collect", "sim=reach", "sim.num_envs=4", "episodes=4", "imperfection=0.3", f"out={demos}"]) == 0
    net = ["policy.net.hidden=[32,32,32]", "algo.steps=20"]
    assert main([*CLONE, *net, f"demos={demos}", f"run_dir={folder / 'whole'}"]) == 0
    return folder


def drop_last(run: Path, step: int) -> None:
    """Take the run back to ``step``, as if it had died in the iteration after it."""
    for path in (run / "checkpoints").iterdir():
        if int(path.name.removeprefix("step_")) > step:
            (path / "training_state.json").write_text("{")  # half-written, as far as resume can tell


def untimed(run: Path) -> list[dict[str, Any]]:
    return [{k: v for k, v in row.items() if not k.startswith(TIMED)} for row in read_metrics(run / METRICS)]


def assert_same_end(first: Path, second: Path, step: int) -> None:
    states = [load_checkpoint(run / "checkpoints" / f"step_{step:08d}").state for run in (first, second)]
    assert_trees_equal(states[0]["stage"], states[1]["stage"])
    assert_trees_equal(states[0]["global_rng"], states[1]["global_rng"])
    assert untimed(first) == untimed(second)


def test_cloning_resumes_bit_for_bit(root: Path) -> None:
    net = ["policy.net.hidden=[32,32,32]", "algo.steps=20"]
    run = root / "clone"
    assert main([*CLONE, *net, f"demos={root / 'demos'}", f"run_dir={run}"]) == 0
    drop_last(run, 2)
    torch.rand(5)
    assert main(["train", f"resume={run}"]) == 0
    assert_same_end(run, root / "whole", 4)


def test_finetuning_resumes_bit_for_bit(root: Path) -> None:
    whole, cut = root / "ft_whole", root / "ft_cut"
    start = [*FINETUNE, f"checkpoint={root / 'whole'}"]
    assert main([*start, f"run_dir={whole}", "loop.iterations=4"]) == 0
    assert main([*start, f"run_dir={cut}", "loop.iterations=2"]) == 0
    np.random.default_rng().random()
    torch.rand(5)
    assert main(["train", f"resume={cut}", "loop.iterations=4"]) == 0
    assert_same_end(cut, whole, 4)


def test_an_existing_run_is_not_overwritten(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FINETUNE, f"checkpoint={root / 'whole'}", f"run_dir={root / 'whole'}"]) == 2
    assert "continue it with resume=" in capsys.readouterr().err


def test_more_finetuned_steps_than_there_are(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    argv = [*FINETUNE, f"checkpoint={root / 'whole'}", f"run_dir={root / 'x'}", "finetune.ft_steps=99"]
    assert main(argv) == 2
    assert "ft_steps=99" in capsys.readouterr().err


def test_a_policy_of_another_task_is_refused(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*FINETUNE, "sim=lift", f"checkpoint={root / 'whole'}", f"run_dir={root / 'x'}"]) == 2
    assert "check sim=" in capsys.readouterr().err


def test_eval_writes_a_report_from_the_folder_alone(root: Path, tmp_path: Path) -> None:
    assert main(["eval", f"checkpoint={root / 'whole'}", "n=4", "videos=0", f"out={tmp_path / 'report'}"]) == 0
    report = json.loads((tmp_path / "report" / "report.json").read_text())
    assert report["summary"]["n"] == 4
    assert (tmp_path / "report" / "report.html").stat().st_size > 1000


def test_nan_is_dumped_and_replayed(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from robopo.rollout.collector import Collector

    real = Collector.collect

    def poisoned(self: Collector, *args: Any) -> Any:
        batch = real(self, *args)
        batch.reward[0, 1] = torch.nan
        return batch

    run = root / "nan"
    monkeypatch.setattr(Collector, "collect", poisoned)
    assert main([*FINETUNE, f"checkpoint={root / 'whole'}", f"run_dir={run}", "loop.iterations=2"]) == 2
    assert "batch.reward (1 of 40 elements) is NaN" in capsys.readouterr().err
    monkeypatch.undo()
    assert main(["doctor", "--replay", str(run / "nan" / "step_00000000")]) == 1
    out = capsys.readouterr().out
    assert "learner: all finite" in out
    assert "again: batch.reward (1 of 40 elements)" in out
