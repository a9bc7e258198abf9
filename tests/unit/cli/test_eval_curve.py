from __future__ import annotations

import json
from pathlib import Path

import pytest

from robopo.cli.evaluate import curve
from robopo.errors import DataError


def written(folder: Path, *rows: dict[str, float]) -> Path:
    path = folder / "metrics.jsonl"
    path.write_text("".join(json.dumps({"step": n, **row}) + "\n" for n, row in enumerate(rows)))
    return path


def test_curve_holds_the_evaluations(tmp_path: Path) -> None:
    look = {"env_steps": 80.0, "elapsed_s": 2.0, "eval/n": 10.0, "eval/successes": 4.0, "eval/return": 0.4}
    points = curve(written(tmp_path, {"loss": 1.0}, look))
    assert [(p.env_steps, p.wall_s, p.successes, p.n) for p in points] == [(80, 2.0, 4, 10)]


def test_there_is_no_curve_where_the_simulator_knows_no_success(tmp_path: Path) -> None:
    assert curve(written(tmp_path, {"eval/n": 10.0, "eval/return": -3.0})) == []


def test_a_log_with_neither_is_not_ours(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not a robopo log"):
        curve(written(tmp_path, {"eval/n": 10.0}))
