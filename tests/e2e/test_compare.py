"""Two methods, two seeds, interrupted in the middle and continued: nothing is run twice, and the result is whole."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from robopo.cli import jobs
from robopo.cli.compare import JobBar
from robopo.cli.jobs import Progress, Status, read_status
from robopo.cli.main import main
from robopo.train.logger import read_metrics
from tests.helpers.forked import ForkedRobopo

SIM = ["sim=reach", "sim.num_envs=4", "evaluation.n=2", "evaluation.num_envs=2", "loop.eval_every=0"]
ITERATIONS = 6
TRAIN = [
    "finetune.num_decisions=5",
    "finetune.critic_hidden=[16,16,16]",
    "loop.eval_every=3",
    "loop.checkpoint_every=1",
    "evaluation.n=4",
]
SMALL = (
    'study.tasks.reach.sim=["sim=reach","sim.num_envs=4","sim.max_episode_steps=20"]',
    f"study.train={json.dumps(TRAIN)}",
    'study.evaluate=["num_envs=4"]',
    f"study.env_steps={ITERATIONS * 4 * 5 * 4}",
    "study.n=6",
    "processes=2",
)


@pytest.fixture(scope="module", autouse=True)
def _threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    assert main(["collect", "sim=reach", "sim.num_envs=4", "episodes=4", f"out={folder / 'demos'}"]) == 0
    small = ["torch_threads=1", "algo.steps=20", "algo.warmup_steps=5", "policy.net.hidden=[32,32,32]"]
    assert main(["train", "algo=bc", *SIM, *small, f"demos={folder / 'demos'}", f"run_dir={folder / 'bc'}"]) == 0
    return folder / "bc"


@pytest.fixture
def forks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Jobs skip the imports that this process has done; what starts a job, stops it and reads its code is the same."""
    fake = SimpleNamespace(Popen=ForkedRobopo, DEVNULL=subprocess.DEVNULL, STDOUT=subprocess.STDOUT)
    monkeypatch.setattr(jobs, "subprocess", fake)


def interrupted(out: Path, argv: list[str]) -> int:
    """The exit code of ``robopo compare``, which gets SIGTERM when a training has its second checkpoint."""
    sent = False

    def update(self: JobBar, progress: Progress) -> None:
        nonlocal sent
        if not sent and progress.running and any(out.glob("reach/seed*/*/checkpoints/step_00000002")):
            sent = True
            os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(JobBar, "update", update)
        code = main(argv)
    assert sent
    return code


@pytest.mark.slow
@pytest.mark.usefixtures("forks")
def test_a_comparison_is_interrupted_and_continued(
    cloned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "study"
    argv = ["compare", "study=reach_epochs", f"study.tasks.reach.checkpoints.diffusion={cloned}", *SMALL, f"out={out}"]
    assert interrupted(out, argv) == 128 + signal.SIGTERM
    assert f"robopo compare resume={out}" in capsys.readouterr().out
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
