from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from robopo.train.checkpoint import load_checkpoint
from robopo.train.logger import METRICS, RunLogger, read_metrics
from robopo.train.loop import LoopConfig, train
from tests.e2e.kill_driver import ITERATIONS
from tests.unit.train.toys import on_policy_stage
from tests.unit.train.trees import assert_trees_equal

ROOT = Path(__file__).parents[2]
TIMED = ("time/", "elapsed_s", "steps_per_s")
SEEDS = ("1", "2", "3")


def untimed_log(run_dir: Path) -> list[dict[str, Any]]:
    rows = read_metrics(run_dir / METRICS)
    return [{k: v for k, v in row.items() if not k.startswith(TIMED)} for row in rows]


def test_killed_again_and_again_ends_where_an_undisturbed_run_does(tmp_path: Path) -> None:
    env = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.e2e.kill_driver", str(tmp_path), *SEEDS]
    done = subprocess.run(command, env=env, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert all(int(kills) >= 5 for kills in done.stdout.split())  # else the test has not tested anything

    whole = tmp_path / "whole"
    logger = RunLogger(whole)
    config = LoopConfig(iterations=ITERATIONS, checkpoint_every=ITERATIONS)
    expected = load_checkpoint(train(on_policy_stage(), config, run_dir=whole, logger=logger).checkpoint)
    logger.close()
    for seed in SEEDS:
        checkpoints = tmp_path / seed / "checkpoints"
        found = load_checkpoint(checkpoints / expected.folder.name)
        assert_trees_equal(found.state["stage"], expected.state["stage"])
        assert untimed_log(tmp_path / seed) == untimed_log(whole)
        assert all(path.name.startswith("step_") for path in checkpoints.iterdir())  # no leftovers
