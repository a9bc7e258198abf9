"""``sim=`` is all that changes: one DPPO configuration trains in every engine that is installed here."""

from __future__ import annotations

import importlib.util
import json
import math
from pathlib import Path

import pytest

from robopo.cli.train import main

SIMS = {
    "native": "reach",
    "native-several-tasks": "multi_task",
    "gymnasium": "half_cheetah",
    "robosuite": "robosuite_lift",
    "isaaclab": "isaaclab_reach",
}
DPPO = [
    *("algo=dppo", "policy=diffusion_mlp", "from_scratch=true", "sim.num_envs=2", "finetune.num_decisions=3"),
    *("loop.iterations=2", "loop.eval_every=0", "loop.eval_first=false", "evaluation.n=2", "evaluation.num_envs=2"),
]


@pytest.mark.parametrize("engine", SIMS)
def test_the_same_configuration_trains(engine: str, tmp_path: Path) -> None:
    package = engine.split("-", maxsplit=1)[0]
    if package in ("robosuite", "isaaclab") and not importlib.util.find_spec(package):
        pytest.skip(f"{package} is not installed in this environment")
    run = tmp_path / "run"
    assert main([f"sim={SIMS[engine]}", "sim.max_episode_steps=8", *DPPO, f"run_dir={run}"]) == 0
    rows = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    steps = [row for row in rows if "actor_loss" in row]
    assert len(steps) == 2
    # Sparse rewards say nothing to the actor yet; the critic has its own start to unlearn.
    assert all(math.isfinite(row["actor_loss"]) and row["critic_grad_norm"] > 0 for row in steps)
    assert list(run.glob("checkpoints/*/config.json"))
