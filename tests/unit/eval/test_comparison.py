from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from robopo.errors import DataError
from robopo.eval.comparison import Axis, Measure, Reach, RunRecord, analyse, run_record, seed_curve, to_json
from robopo.eval.comparison_plots import describe, plot_curves
from robopo.eval.comparison_tables import all_tables, equal_kl_table, result_table, to_html, to_markdown
from robopo.eval.records import EpisodeRow, EvalReport


def log(*evaluations: tuple[float, float, int], kl: float | None = None) -> list[dict[str, Any]]:
    """Rows as in metrics.jsonl: (env_steps, elapsed_s, successes of 10); the first is the baseline, which has neither.

    Between two evaluations lies one iteration that only logs.
    """
    rows: list[dict[str, Any]] = []
    for steps, seconds, successes in evaluations:
        found = {"eval/n": 10.0, "eval/successes": float(successes), "eval/return": successes / 2}
        if not rows:
            rows.append({"step": 0, **found})
            continue
        before = float(rows[-1].get("env_steps", 0.0))
        more = {} if kl is None else {"chain_kl": kl}
        rows.append({"step": len(rows), "env_steps": (before + steps) / 2, "elapsed_s": seconds - 0.5, **more})
        rows.append({"step": len(rows), "env_steps": steps, "elapsed_s": seconds, **more, **found})
    return rows


def report(*successes: int, returns: float = 0.0) -> EvalReport:
    rows = [
        EpisodeRow(1_001_000_000 + i, bool(s), bool(s), 5, s + returns, terminated=bool(s))
        for i, s in enumerate(successes)
    ]
    return EvalReport(tuple(rows))


def record(method: str, seed: int, rows: list[dict[str, Any]], final: EvalReport | None = None) -> RunRecord:
    return run_record(rows, final, method=method, seed=seed)


FAST = record("fast", 1, log((0, 0, 4), (100, 2, 9), (200, 4, 10), kl=0.5), report(1, 1, 1, 0))
FAST_TOO = record("fast", 2, log((0, 0, 6), (100, 2, 9), (220, 5, 10), kl=0.25), report(1, 1, 1, 1))
SLOW = record("slow", 1, log((0, 0, 4), (150, 1, 5), (300, 2, 9), kl=0.1), report(1, 0, 0, 0))
SLOW_TOO = record("slow", 2, log((0, 0, 6), (150, 1, 7), (300, 2, 10), kl=0.1), report(0, 1, 1, 1))
START = RunRecord("clone", 1, final=report(1, 0, 0, 0), is_start=True)
ALL = (START, FAST, FAST_TOO, SLOW, SLOW_TOO)


def test_a_log_becomes_points_with_its_running_sums() -> None:
    assert [p[:3] for p in FAST.points] == [(0.0, 0.0, 0.0), (100.0, 2.0, 1.0), (200.0, 4.0, 2.0)]
    assert [p.value for p in FAST.points] == [0.4, 0.9, 1.0]
    assert (FAST.env_steps, FAST.wall_s, FAST.kl) == (200.0, 4.0, 2.0)


def test_kl_is_absent_or_counts_what_is_there() -> None:
    assert record("m", 0, log((0, 0, 4), (100, 2, 9))).kl is None
    rows = log((0, 0, 4), (100, 2, 9), (200, 4, 9), kl=0.5)
    rows[1]["chain_kl"] = None  # NaN in the log: the critic warmed up
    rows[2]["chain_kl"] = -0.1  # an estimate below zero takes nothing back
    assert record("m", 0, rows).kl == 1.0
    other = run_record(rows, None, method="m", seed=0, kl_metric="other_kl")
    assert other.kl is None and all(point.kl is None for point in other.points)


def test_a_return_is_read_where_it_counts() -> None:
    found = run_record(log((0, 0, 4), (100, 2, 9)), None, method="m", seed=0, measure=Measure.RETURN)
    assert [point.value for point in found.points] == [2.0, 4.5]
    with pytest.raises(DataError, match="step 0 of the log has no return"):
        run_record([{"step": 0, "eval/n": 3.0}], None, method="m", seed=0, measure=Measure.RETURN)


def test_rates_are_pooled_and_compared_on_the_same_starts() -> None:
    clone, fast, slow = analyse("lift", ALL).methods
    assert (fast.n, fast.successes, fast.finals) == (8, 7, (0.75, 1.0))
    assert fast.rate is not None and fast.rate.point == 7 / 8
    assert clone.is_start and clone.versus is None and fast.versus is None
    # Seed 1: slow loses episodes 1 and 2. Seed 2: slow loses episode 0. So +0, -3: p = 2 / 2^3.
    assert slow.versus == (-3 / 8, 0, 3, 0.25)
    turned = analyse("lift", ALL, reference="slow").methods
    assert turned[1].versus == (3 / 8, 3, 0, 0.25) and turned[2].versus is None


def test_returns_are_compared_by_sign() -> None:
    runs = [RunRecord("a", 0, final=report(0, 1, 0)), RunRecord("b", 0, final=report(0, 0, 1, returns=0.5))]
    found = analyse("hop", runs, measure=Measure.RETURN).methods[1]
    assert found.versus is not None and found.versus[1:3] == (2, 1)
    assert found.versus.difference == pytest.approx(0.5)
    assert found.finals == (pytest.approx(1 / 3 + 0.5),)


def test_thresholds_count_the_first_evaluation_at_or_above() -> None:
    _, fast, slow = analyse("lift", ALL, thresholds=(0.9, 0.99)).methods
    assert fast.reached[0.9] == (Reach(100.0, 2.0), Reach(100.0, 2.0))
    assert slow.reached[0.99] == (None, Reach(300.0, 2.0))
    assert fast.reached[0.99] == (Reach(200.0, 4.0), Reach(220.0, 5.0))


def test_equal_steps_and_equal_kl() -> None:
    found = analyse("lift", ALL)
    _, fast, slow = found.methods
    assert found.equal_steps == 200.0
    assert fast.at_equal_steps is not None and slow.at_equal_steps is not None
    # Seed 2 of fast: from 0.9 at 100 to 1.0 at 220, so 0.9 + 100/120 * 0.1 at 200.
    assert fast.at_equal_steps == (pytest.approx((1.0 + 0.9 + 1 / 12) / 2), pytest.approx(0.9 + 1 / 12), 1.0)
    # slow at 200 is a third of the way from 150 to 300: 0.5 + 0.4/3 and 0.7 + 0.1.
    assert slow.at_equal_steps.low == pytest.approx(0.5 + 0.4 / 3)
    assert slow.at_equal_steps.high == pytest.approx(0.8)
    # KL of whole runs: 2, 1, 0.4, 0.4.
    assert found.equal_kl == pytest.approx(0.4)
    # fast seed 1: 0.4 of the way to KL 1: 0.4 + 0.4 * 0.5 = 0.6; seed 2: 0.8 of the way to KL 0.5: 0.6 + 0.8 * 0.3.
    assert fast.at_equal_kl == (pytest.approx(0.72), pytest.approx(0.6), pytest.approx(0.84))
    assert slow.at_equal_kl == (pytest.approx(0.95), pytest.approx(0.9), pytest.approx(1.0))


def test_a_method_without_kl_is_named_as_such() -> None:
    silent = record("silent", 1, log((0, 0, 4), (100, 2, 9)))
    found = analyse("lift", [FAST, silent])
    assert found.equal_kl == 2.0
    assert equal_kl_table(found).rows == (
        ("fast", "100 % (100 % to 100 %)", "2"),
        ("silent", "KL not logged", "not logged"),
    )
    assert seed_curve([silent], Axis.KL) is None
    assert "no method logs its KL" in equal_kl_table(analyse("lift", [silent])).caption


def test_curves_end_with_the_shortest_run() -> None:
    curve = seed_curve([FAST, FAST_TOO], Axis.ENV_STEPS)
    assert curve is not None
    np.testing.assert_allclose(curve.x, [0, 100, 200])
    np.testing.assert_allclose(curve.mean, [0.5, 0.9, (1 + 0.9 + 1 / 12) / 2])
    np.testing.assert_allclose(curve.low, [0.4, 0.9, 0.9 + 1 / 12])
    np.testing.assert_allclose(curve.high, [0.6, 0.9, 1.0])
    assert seed_curve([START], Axis.ENV_STEPS) is None


def test_tables_say_what_was_found_and_what_is_missing() -> None:
    lone = record("lone", 1, log((0, 0, 4), (100, 200, 9)))  # never evaluated on REPORT episodes
    table = result_table(analyse("lift", [*ALL, lone], thresholds=(0.99,)))
    rows = {row[0]: dict(zip(table.header, row, strict=True)) for row in table.rows}
    assert rows["fast"]["solved"] == "7 of 8" and rows["fast"]["per seed"] == "75 %, 100 %"
    assert rows["fast"]["steps to 99 %"] == "210 (200 to 220)" and rows["fast"]["time to 99 %"] == "4 s (4 s to 5 s)"
    assert rows["slow"]["steps to 99 %"] == "1 of 2 seeds: 300"
    assert rows["slow"]["against fast"] == "-37.5 points (+0, −3, p = 0.250)"
    assert rows["lone"]["solved"] == "–" and rows["lone"]["steps to 99 %"] == "not reached"
    assert rows["lone"]["wall clock"] == "3.3 min"
    assert rows["clone (start)"]["env steps"] == "–"
    assert analyse("lift", []).methods == () and all_tables([analyse("lift", [])])[0].rows == ()


def test_pages_hold_tables_and_pictures(tmp_path: Path) -> None:
    results = [analyse("lift", ALL), analyse("push", [START, FAST])]
    pictures = {describe(results, axis): path for axis in Axis if (path := plot_curves(results, axis, tmp_path))}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(
        f"success_{axis}.{kind}" for axis in Axis for kind in ("png", "svg")
    )
    html = to_html("a & b", all_tables(results), pictures, ["one <note>"])
    assert html.count("data:image/png;base64,") == 3 and "a &amp; b" in html and "one &lt;note&gt;" in html
    text = to_markdown("study", all_tables(results), [path.name for path in pictures.values()])
    lines = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in lines[:5]} == {12}
    assert "![success env steps](success_env_steps.png)" in text
    assert plot_curves([analyse("lift", [START])], Axis.KL, tmp_path) is None


def test_json_holds_every_number() -> None:
    tree = json.loads(json.dumps(to_json(analyse("lift", ALL))))
    fast = tree["methods"][1]
    assert fast["successes"] == 7 and fast["rate"]["point"] == 7 / 8
    assert fast["runs"][0]["curve"][1] == {"env_steps": 100.0, "wall_s": 2.0, "kl": 1.0, "value": 0.9}
    assert fast["reached"]["0.95"][0] == {"env_steps": 200.0, "wall_s": 4.0}
    assert tree["methods"][2]["versus"]["worse"] == 3
