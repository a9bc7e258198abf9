"""Two methods, two seeds, interrupted in the middle and continued: nothing is run twice, and the result is whole."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from robopo.cli.jobs import Status, read_status
from robopo.cli.main import main
from robopo.train.logger import read_metrics

SIM = ["sim=reach", "sim.num_envs=4", "evaluation.n=2", "evaluation.num_envs=2"]
ITERATIONS = 12
SMALL = (
    'study.tasks.reach.sim=["sim=reach","sim.num_envs=4"]',
    'study.train=["finetune.num_decisions=5","loop.eval_every=4","loop.checkpoint_every=1","evaluation.n=4"]',
    'study.evaluate=["num_envs=4"]',
    f"study.env_steps={ITERATIONS * 4 * 5 * 4}",
    "study.n=6",
    "processes=2",
)


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    assert main(["collect", "sim=reach", "sim.num_envs=4", "episodes=4", f"out={folder / 'demos'}"]) == 0
    argv = [f"demos={folder / 'demos'}", f"run_dir={folder / 'bc'}", "algo.steps=101", "policy.net.hidden=[32,32,32]"]
    assert main(["train", "algo=bc", *SIM, *argv]) == 0
    return folder / "bc"


def first_checkpoint(out: Path) -> bool:
    return any(out.glob("reach/seed*/*/checkpoints/step_00000002"))


@pytest.mark.slow
@pytest.mark.timeout(240)
def test_a_comparison_is_interrupted_and_continued(
    cloned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study"
    argv = ["compare", "study=reach_epochs", f"study.tasks.reach.checkpoints.diffusion={cloned}", *SMALL, f"out={out}"]
    process = subprocess.Popen(
        [sys.executable, "-m", "robopo.cli.main", *argv], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    deadline = time.monotonic() + 150
    while not first_checkpoint(out) and process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    process.send_signal(signal.SIGTERM)
    said, _ = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGTERM, said
    assert f"robopo compare resume={out}" in said
    before = read_status(out)
    cut = [name for name, status in before.items() if status is Status.INTERRUPTED]
    assert cut and Status.WAITING in before.values() and Status.RUNNING not in before.values()

    assert main(["compare", f"resume={out}"]) == 0
    assert set(read_status(out).values()) == {Status.DONE}
    for seed in (20, 21):
        for method in ("five_epochs", "one_epoch"):
            rows = read_metrics(out / f"reach/seed{seed}/{method}/metrics.jsonl")
            assert [row["step"] for row in rows] == [*range(ITERATIONS + 1)]
    resumed = [name for name in cut if "resume=" in (out / "logs" / f"{name}.log").read_text()]
    assert resumed, "no training continued from its checkpoint"

    tree = json.loads((out / "compare.json").read_text())
    start, *methods = tree["tasks"][0]["methods"]
    assert start["is_start"] and start["n"] == 6  # the seeds share it, so it is evaluated once
    assert [(m["method"], m["n"], len(m["runs"])) for m in methods] == [("five_epochs", 12, 2), ("one_epoch", 12, 2)]
    assert len({m["runs"][0]["curve"][0]["value"] for m in methods}) == 1  # the same policy before training
    assert methods[1]["versus"] is not None
    for name in ("table.md", "compare.html", "success_env_steps.png", "success_wall_s.svg"):
        assert (out / name).stat().st_size > 500, name
    capsys.readouterr()
    assert main(["compare", f"resume={out}", "study.env_steps=99999"]) == 2
    assert "was begun with other settings" in capsys.readouterr().err
