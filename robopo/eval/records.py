"""The result of an evaluation: one row per episode, everything else derived from the rows."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from math import sqrt
from pathlib import Path
from statistics import stdev
from typing import Any, NamedTuple

from robopo.data.files import write_text
from robopo.errors import DataError
from robopo.eval.intervals import Interval, sign_test, wilson

SCHEMA = 1


@dataclass(frozen=True, slots=True)
class EpisodeRow:
    """What happened in one episode."""

    seed: int
    """Episode seed: the same seed is the same start, whatever the policy."""
    success: bool
    """The task was fulfilled at some step."""
    success_at_end: bool
    """The task was fulfilled at the last step."""
    steps: int
    """Control steps."""
    return_: float
    """Sum of the rewards, not discounted."""
    terminated: bool
    """The episode ended by itself; otherwise it ran out of time."""
    diverged: bool = False
    """The physics gave up; counted as a failure unless the task was fulfilled before."""
    parameters: Mapping[str, float] = field(default_factory=dict[str, float])
    """What was randomised in this episode: name -> physical value."""


@dataclass(frozen=True, slots=True)
class EvalReport:
    """Rows of an evaluation and how they came about."""

    rows: tuple[EpisodeRow, ...]
    """One per episode, in the order of the seeds."""
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Policy, sampler and simulator settings, noise seed, whether noise is per episode."""
    wall_s: float = 0.0
    """Seconds the evaluation took."""

    def __post_init__(self) -> None:
        if not self.rows:
            raise DataError("an evaluation report needs at least one episode")

    @property
    def n(self) -> int:
        """Episodes."""
        return len(self.rows)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Episode seeds, in order."""
        return tuple(row.seed for row in self.rows)

    @property
    def successes(self) -> int:
        """Episodes in which the task was fulfilled at some step."""
        return sum(row.success for row in self.rows)

    @property
    def success(self) -> Interval:
        """Success rate with its 95 % Wilson interval."""
        return wilson(self.successes, self.n)

    @property
    def success_at_end(self) -> Interval:
        """Rate of episodes that ended in success, with its 95 % Wilson interval."""
        return wilson(sum(row.success_at_end for row in self.rows), self.n)

    @property
    def mean_return(self) -> float:
        """Mean undiscounted return."""
        return sum(row.return_ for row in self.rows) / self.n

    @property
    def return_sem(self) -> float | None:
        """Standard error of the mean return; None of a single episode."""
        return standard_error([row.return_ for row in self.rows])

    @property
    def has_success(self) -> bool:
        """Whether the simulator knows success; where not, every row says False and the return is what counts."""
        return bool(self.settings.get("has_success", True))

    @property
    def headline(self) -> str:
        """The number that counts: ``success 0.82 [0.69, 0.90]``, or ``return 4810 ± 52`` (mean, standard error)."""
        return (
            f"success {self.success}" if self.has_success else f"return {plus_minus(self.mean_return, self.return_sem)}"
        )

    @property
    def mean_steps(self) -> float:
        """Mean episode length in control steps."""
        return self.env_steps / self.n

    @property
    def env_steps(self) -> int:
        """Control steps over all episodes."""
        return sum(row.steps for row in self.rows)

    def summary(self) -> dict[str, Any]:
        """The headline numbers as plain values."""
        return {
            "n": self.n,
            "successes": self.successes,
            "success": self.success._asdict(),
            "success_at_end": self.success_at_end._asdict(),
            "mean_return": self.mean_return,
            "return_sem": self.return_sem,
            "mean_steps": self.mean_steps,
            "env_steps": self.env_steps,
            "wall_s": self.wall_s,
        }

    def write_json(self, path: Path) -> None:
        """Everything, so that ``read_json`` gives an equal report."""
        rows = [asdict(row) for row in self.rows]
        tree = {"schema": SCHEMA, "summary": self.summary(), "settings": dict(self.settings), "rows": rows}
        write_text(path, json.dumps(tree, indent=2) + "\n")

    @classmethod
    def read_json(cls, path: Path) -> EvalReport:
        """Read what ``write_json`` wrote."""
        try:
            tree = json.loads(Path(path).read_text(encoding="utf-8"))
            if tree.get("schema") != SCHEMA:
                raise DataError(f"{path} has schema {tree.get('schema')}, expected {SCHEMA}; evaluate again")
            rows = tuple(EpisodeRow(**row) for row in tree["rows"])
            return cls(rows, tree["settings"], tree["summary"]["wall_s"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            if isinstance(error, DataError):
                raise
            raise DataError(f"{path} is not an evaluation report ({error}); evaluate again") from error

    def write_jsonl(self, path: Path) -> None:
        """One JSON object per episode and line."""
        write_text(path, "".join(json.dumps(asdict(row)) + "\n" for row in self.rows))

    def write_csv(self, path: Path) -> None:
        """One line per episode under a header, for a spreadsheet."""
        buffer = io.StringIO()
        plain = [f.name for f in fields(EpisodeRow) if f.name != "parameters"]
        varied = list(self.rows[0].parameters)
        writer = csv.DictWriter(buffer, [*plain, *varied], lineterminator="\n", extrasaction="ignore")
        writer.writeheader()
        writer.writerows({**asdict(row), **row.parameters} for row in self.rows)
        write_text(path, buffer.getvalue())


def standard_error(values: Sequence[float]) -> float | None:
    """Of the mean of independent values; None of fewer than two."""
    return stdev(values) / sqrt(len(values)) if len(values) > 1 else None


def plus_minus(mean: float, sem: float | None) -> str:
    """For example ``4810 ± 52``; without the error where there is none."""
    return f"{mean:.4g}" if sem is None else f"{mean:.4g} ± {sem:.2g}"


class Comparison(NamedTuple):
    """Two policies on the same episodes: solved by the second alone, by the first alone, and the exact p-value."""

    gained: int
    lost: int
    p_value: float


def compare(before: EvalReport, after: EvalReport) -> Comparison:
    """Pair the episodes of two reports by seed. Raises DataError when they ran on different seeds."""
    pairs = _pairs(before, after)
    gained = sum(second.success and not first.success for first, second in pairs)
    lost = sum(first.success and not second.success for first, second in pairs)
    return Comparison(gained, lost, sign_test(gained, lost))


class ReturnChange(NamedTuple):
    """Mean of the second policy's return minus the first's on the same episode, and its standard error."""

    mean: float
    sem: float | None


def compare_returns(before: EvalReport, after: EvalReport) -> ReturnChange:
    """Pair the episodes of two reports by seed. Raises DataError when they ran on different seeds."""
    change = [second.return_ - first.return_ for first, second in _pairs(before, after)]
    return ReturnChange(sum(change) / len(change), standard_error(change))


def _pairs(before: EvalReport, after: EvalReport) -> list[tuple[EpisodeRow, EpisodeRow]]:
    """The two rows of each seed."""
    first, second = ({row.seed: row for row in report.rows} for report in (before, after))
    if first.keys() != second.keys():
        alone = len(first.keys() ^ second.keys())
        raise DataError(f"{alone} seeds appear in one report alone; evaluate both policies on the same seeds")
    return [(row, second[seed]) for seed, row in first.items()]
