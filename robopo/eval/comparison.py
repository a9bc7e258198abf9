"""Methods on tasks over training seeds: what finished runs reached, after equal steps and after equal KL.

Final numbers come from REPORT episodes, curves from the SELECTION episodes that training looked at. Rates are pooled
over training seeds; their Wilson intervals count episodes, so the spread between seeds stands beside them, not in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from statistics import median
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopo.errors import DataError
from robopo.eval.intervals import Interval, sign_test, wilson
from robopo.eval.records import EvalReport


class Measure(StrEnum):
    """What counts on a task."""

    SUCCESS = "success"
    """Share of solved episodes."""
    RETURN = "return"
    """Mean undiscounted return, for tasks without success."""


class Axis(StrEnum):
    """What a curve is drawn over."""

    ENV_STEPS = "env_steps"
    """Control steps of training, over all environments."""
    WALL_S = "wall_s"
    """Seconds of training, evaluations included."""
    KL = "kl"
    """Sum of the logged KL of all updates so far."""


class Point(NamedTuple):
    """One evaluation during training."""

    env_steps: float
    wall_s: float
    kl: float | None
    """None where the run logs no KL."""
    value: float
    """Success rate or mean return."""


@dataclass(frozen=True, slots=True)
class RunRecord:
    """One training run, or a start policy (``is_start``: no training, no points)."""

    method: str
    """Name of the method, or of the start."""
    seed: int
    """Root seed of the run."""
    points: tuple[Point, ...] = ()
    """Evaluations during training, in order."""
    env_steps: float = 0.0
    """Control steps of the whole training."""
    wall_s: float = 0.0
    """Seconds of the whole training."""
    kl: float | None = None
    """Sum of the KL of all updates; None where none was logged."""
    final: EvalReport | None = None
    """REPORT episodes of the last checkpoint; None where they are missing."""
    is_start: bool = False
    """The policy that methods started from."""


class Versus(NamedTuple):
    """Against the reference on the same episodes after training from the same seeds."""

    difference: float
    """Mean of this method minus the reference, over all pairs."""
    better: int
    """Pairs in which this method did better: it alone succeeded, or its return is higher."""
    worse: int
    """Pairs in which the reference did better."""
    p_value: float
    """Exact two-sided sign test."""


class Reach(NamedTuple):
    """When a run first evaluated at a threshold or above."""

    env_steps: float
    wall_s: float


class Band(NamedTuple):
    """A value over seeds."""

    mean: float
    low: float
    high: float


class Curve(NamedTuple):
    """Values over an axis: mean and extremes of the seeds, all of one length."""

    x: NDArray[np.float64]
    mean: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class MethodResult:
    """What the seeds of one method reached on one task."""

    method: str
    is_start: bool
    records: tuple[RunRecord, ...]
    """One per seed."""
    n: int
    """REPORT episodes over all seeds."""
    successes: int
    """Solved ones."""
    rate: Interval | None
    """Pooled rate; None without REPORT episodes."""
    finals: tuple[float | None, ...]
    """Per seed: success rate or mean return on REPORT episodes."""
    reached: dict[float, tuple[Reach | None, ...]]
    """Threshold -> per seed, when it was reached."""
    at_equal_steps: Band | None
    """Value on the curve at ``TaskResult.equal_steps``."""
    at_equal_kl: Band | None
    """Value on the curve at ``TaskResult.equal_kl``."""
    versus: Versus | None
    """Against the reference; None for itself, for starts, and without common episodes."""


@dataclass(frozen=True, slots=True)
class TaskResult:
    """All methods on one task."""

    task: str
    measure: Measure
    thresholds: tuple[float, ...]
    reference: str
    """Method that the others are compared with."""
    equal_steps: float | None
    """The most control steps that every run took; None without runs."""
    equal_kl: float | None
    """The largest KL that every run with a logged KL reached; None where none logs it."""
    methods: tuple[MethodResult, ...]
    """In the order of the records: starts and methods."""


def run_record(
    rows: Sequence[Mapping[str, Any]],
    final: EvalReport | None,
    *,
    method: str,
    seed: int,
    measure: Measure = Measure.SUCCESS,
    kl_metric: str = "chain_kl",
) -> RunRecord:
    """Join the log of a run, as ``read_metrics`` gives it, and the evaluation of its last checkpoint.

    kl_metric: name of the logged mean KL between the policies before and after an update. Raises DataError when an
    evaluation in the log lacks what ``measure`` needs.
    """
    logs_kl = any(row.get(kl_metric) is not None for row in rows)
    points: list[Point] = []
    env_steps, wall_s, kl = 0.0, 0.0, 0.0
    for row in rows:
        env_steps = float(row.get("env_steps") or env_steps)
        wall_s = float(row.get("elapsed_s") or wall_s)
        # An iteration that leaves the policy alone (critic warm-up) logs none, or zero; estimates may dip below zero.
        kl += max(0.0, float(row.get(kl_metric) or 0.0))
        if row.get("eval/n"):
            points.append(Point(env_steps, wall_s, kl if logs_kl else None, _value(row, measure)))
    return RunRecord(
        method=method,
        seed=seed,
        points=tuple(points),
        env_steps=env_steps,
        wall_s=wall_s,
        kl=kl if logs_kl else None,
        final=final,
    )


def analyse(
    task: str,
    records: Sequence[RunRecord],
    *,
    measure: Measure = Measure.SUCCESS,
    thresholds: Sequence[float] = (0.95,),
    reference: str = "",
) -> TaskResult:
    """Compare the methods among ``records``; ``reference`` defaults to the first that is not a start."""
    names = list(dict.fromkeys((record.method, record.is_start) for record in records))
    by_name = {name: tuple(r for r in records if (r.method, r.is_start) == name) for name in names}
    trained = [record for record in records if not record.is_start]
    chosen = reference or next((record.method for record in trained), "")
    steps = _common_end(trained, Axis.ENV_STEPS)
    kl = _common_end([record for record in trained if record.kl is not None], Axis.KL)
    against = by_name.get((chosen, False), ())
    methods = tuple(
        _method(group, name, measure, thresholds, steps, kl, () if name[1] or name[0] == chosen else against)
        for name, group in by_name.items()
    )
    return TaskResult(task, measure, tuple(thresholds), chosen, steps, kl, methods)


def seed_curve(records: Sequence[RunRecord], axis: Axis) -> Curve | None:
    """Mean, lowest and highest value over seeds, up to where the shortest run ends; None where ``axis`` was not logged.

    Between two evaluations the value is interpolated linearly.
    """
    lines = [_line(record, axis) for record in records if not record.is_start]
    known = [line for line in lines if line is not None]
    if not known or len(known) < len(lines):
        return None
    end = min(float(x[-1]) for x, _ in known)
    every = np.unique(np.concatenate([x for x, _ in known]))
    x = np.unique(np.append(every[every <= end], end))
    values = np.stack([np.interp(x, at, value) for at, value in known])  # [seeds, points]
    return Curve(x, values.mean(0), values.min(0), values.max(0))


def to_json(result: TaskResult) -> dict[str, Any]:
    """Plain values of everything but the episodes."""
    return {
        "task": result.task,
        "measure": str(result.measure),
        "reference": result.reference,
        "equal_steps": result.equal_steps,
        "equal_kl": result.equal_kl,
        "methods": [_method_json(method) for method in result.methods],
    }


def middle(values: Sequence[Reach | None], axis: Axis) -> float | None:
    """Median over seeds; None unless every seed reached it."""
    found = [getattr(value, axis) for value in values if value is not None]
    return float(median(found)) if found and len(found) == len(values) else None


def _value(row: Mapping[str, Any], measure: Measure) -> float:
    try:
        if measure is Measure.SUCCESS:
            return float(row["eval/successes"]) / float(row["eval/n"])
        return float(row["eval/return"])
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(
            f"step {row.get('step')} of the log has no {measure} ({error!r}); is it a log of robopo train?"
        ) from error


def _method(
    group: tuple[RunRecord, ...],
    name: tuple[str, bool],
    measure: Measure,
    thresholds: Sequence[float],
    steps: float | None,
    kl: float | None,
    against: Sequence[RunRecord],
) -> MethodResult:
    reports = [record.final for record in group if record.final is not None]
    n, successes = sum(report.n for report in reports), sum(report.successes for report in reports)
    return MethodResult(
        method=name[0],
        is_start=name[1],
        records=group,
        n=n,
        successes=successes,
        rate=wilson(successes, n) if n else None,
        finals=tuple(_final(record.final, measure) for record in group),
        reached={limit: tuple(_reach(record, limit) for record in group) for limit in thresholds},
        at_equal_steps=_at(group, Axis.ENV_STEPS, steps),
        at_equal_kl=_at(group, Axis.KL, kl),
        versus=_versus(group, against, measure),
    )


def _final(report: EvalReport | None, measure: Measure) -> float | None:
    if report is None:
        return None
    return report.success.point if measure is Measure.SUCCESS else report.mean_return


def _reach(record: RunRecord, limit: float) -> Reach | None:
    return next((Reach(p.env_steps, p.wall_s) for p in record.points if p.value >= limit), None)


def _line(record: RunRecord, axis: Axis) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
    """Positions and values of the evaluations of one run."""
    if not record.points or (axis is Axis.KL and record.kl is None):
        return None
    x = np.array([getattr(point, axis) for point in record.points], dtype=np.float64)
    return x, np.array([point.value for point in record.points], dtype=np.float64)


def _common_end(records: Sequence[RunRecord], axis: Axis) -> float | None:
    ends = [float(line[0][-1]) for record in records if (line := _line(record, axis)) is not None]
    return min(ends, default=None)


def _at(group: Sequence[RunRecord], axis: Axis, x: float | None) -> Band | None:
    lines = [line for record in group if (line := _line(record, axis)) is not None]
    if x is None or not lines:
        return None
    values = [float(np.interp(x, at, value)) for at, value in lines]
    return Band(float(np.mean(values)), min(values), max(values))


def _versus(group: Sequence[RunRecord], against: Sequence[RunRecord], measure: Measure) -> Versus | None:
    """Pairs share the training seed and the episode."""
    others = {record.seed: record.final for record in against}
    differences: list[float] = []
    for record in group:
        other = others.get(record.seed)
        if record.final is None or other is None:
            continue
        theirs = {row.seed: row for row in other.rows}
        for row in record.final.rows:
            if (pair := theirs.get(row.seed)) is not None:
                mine, reference = (
                    (float(row.success), float(pair.success))
                    if measure is Measure.SUCCESS
                    else (row.return_, pair.return_)
                )
                differences.append(mine - reference)
    if not differences:
        return None
    better, worse = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return Versus(float(np.mean(differences)), better, worse, sign_test(better, worse))


def _method_json(method: MethodResult) -> dict[str, Any]:
    def maybe(value: Any) -> Any:
        return None if value is None else value._asdict()

    runs = [
        {
            "seed": record.seed,
            "final": final,
            "env_steps": record.env_steps,
            "wall_s": record.wall_s,
            "kl": record.kl,
            "curve": [point._asdict() for point in record.points],
        }
        for record, final in zip(method.records, method.finals, strict=True)
    ]
    return {
        "method": method.method,
        "is_start": method.is_start,
        "n": method.n,
        "successes": method.successes,
        "rate": maybe(method.rate),
        "reached": {f"{limit:g}": [maybe(value) for value in values] for limit, values in method.reached.items()},
        "at_equal_steps": maybe(method.at_equal_steps),
        "at_equal_kl": maybe(method.at_equal_kl),
        "versus": maybe(method.versus),
        "runs": runs,
    }
