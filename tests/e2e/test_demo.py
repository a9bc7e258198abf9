"""The demo, as small as it goes: every step runs, and what it writes has the promised shape."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SMALL = (
    "n=12", "demonstrations=16", "cloning_steps=120", "iterations=1", "films=1", "deploy_episodes=1",
    "sim.num_envs=8", "seed=5",
)  # fmt: skip


@pytest.mark.timeout(240)
def test_demo_runs_every_step_and_writes_the_promised_files(tmp_path: Path) -> None:
    out = tmp_path / "demo"
    environment = {**os.environ, "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-m", "robopo.cli.main", "demo", *SMALL, f"out={out}"],
        capture_output=True, text=True, timeout=220, env=environment, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    *_, line, page = done.stdout.strip().splitlines()
    assert page == str(out / "report.html")
    summary = json.loads((out / "report.json").read_text())
    assert json.loads(line) == summary
    assert set(summary) == {"seed", "wall_s", "bc", "finetuned", "env_steps", "deploy"}
    assert summary["seed"] == 5 and summary["bc"]["n"] == summary["finetuned"]["n"] == 12
    assert 0 <= summary["finetuned"]["successes"] <= 12
    # One iteration: at most 25 decisions of 4 rows in 8 environments, less where an episode ended inside a chunk.
    assert 400 < summary["env_steps"] <= 25 * 4 * 8
    assert set(summary["deploy"]) == {"steps", "gate_interventions", "period_p99_ms"}
    html = (out / "report.html").read_text()
    assert "robopo train algo=dppo" in html and "data:video/mp4;base64," in html
    assert "link was cut in mid-motion, while the fastest joint moved" in html and "arm at rest after" in html
    assert "http://" not in html.replace("http://www.w3.org", "") and "https://" not in html
    for made in ("demos/meta/info.json", "bc/metrics.jsonl", "dppo/metrics.jsonl", "arm/dataset/meta/info.json"):
        assert (out / made).is_file(), made
