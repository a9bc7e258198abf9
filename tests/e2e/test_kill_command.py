"""SIGKILL and SIGTERM on the real command, DPPO in MuJoCo: what is resumed ends exactly as if nothing had happened."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from robopo.cli.main import main
from robopo.train.checkpoint import latest_checkpoint, load_checkpoint
from robopo.train.logger import read_metrics

TINY = (
    "sim=reach", "sim.num_envs=4", "sim.num_threads=1", "evaluation.n=4", "evaluation.num_envs=4", "loop.eval_every=0",
    "finetune.num_decisions=3", "loop.iterations=25", "loop.checkpoint_every=1", "algo.epochs=2",
)  # fmt: skip


@pytest.fixture(scope="module")
def cloned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    assert main(["collect", "sim=reach", "sim.num_envs=4", "episodes=4", f"out={folder / 'demos'}"]) == 0
    argv = ["algo=bc", f"demos={folder / 'demos'}", f"run_dir={folder / 'bc'}", "algo.steps=101"]
    assert main(["train", "sim=reach", "sim.num_envs=4", "evaluation.n=4", "evaluation.num_envs=4", *argv]) == 0
    return folder / "bc"


def start(*argv: str) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "robopo.cli.main", "train", *argv]
    return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, env=dict(os.environ))


def wait_for_step(run: Path, step: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 60.0
    while time.monotonic() < deadline and process.poll() is None:
        if (run / "checkpoints" / f"step_{step:08d}").exists():
            return
        time.sleep(0.002)
    raise AssertionError(f"step {step} was never saved; exit code {process.poll()}")


@pytest.mark.timeout(120)
def test_a_killed_run_ends_as_an_undisturbed_one(cloned: Path, tmp_path: Path) -> None:
    calm, struck = tmp_path / "calm", tmp_path / "struck"
    assert main(["train", "algo=dppo", f"checkpoint={cloned}", f"run_dir={calm}", *TINY]) == 0
    rng = np.random.default_rng(7)
    process = start("algo=dppo", f"checkpoint={cloned}", f"run_dir={struck}", *TINY)
    wait_for_step(struck, 3, process)
    time.sleep(float(rng.uniform(0.0, 0.2)))  # in the middle of a step, or of a save
    process.send_signal(signal.SIGKILL)
    assert process.wait(10) == -signal.SIGKILL
    reached = latest_checkpoint(struck)
    assert reached is not None and reached.name < "step_00000025"
    assert main(["train", f"resume={struck}"]) == 0
    for name in ("model.safetensors", "training_state.safetensors"):
        first, second = (run / "checkpoints" / "step_00000025" / name for run in (calm, struck))
        assert first.read_bytes() == second.read_bytes(), name


@pytest.mark.timeout(120)
def test_sigterm_saves_and_exits(cloned: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    endless = ("loop.iterations=1000000", "loop.checkpoint_every=1000000")
    process = start("algo=dppo", f"checkpoint={cloned}", f"run_dir={run}", *TINY, *endless)
    log, deadline = run / "metrics.jsonl", time.monotonic() + 60.0
    while time.monotonic() < deadline and '"step": 2,' not in (log.read_text() if log.exists() else ""):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    assert process.wait(30) == 128 + signal.SIGTERM
    kept = latest_checkpoint(run)
    assert kept is not None
    assert load_checkpoint(kept).step == read_metrics(log)[-1]["step"] >= 2
