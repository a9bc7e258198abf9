"""One HTML file that shows a result to people: rates with intervals, curves, films, deployment, configuration, origin.

Everything is inside the file (films as base64, charts as SVG): it can be mailed, archived and opened without a network.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from robopo.data.files import write_text
from robopo.errors import DataError
from robopo.eval.charts import Bar, interval_chart, percent_range, rate_curve
from robopo.eval.intervals import wilson
from robopo.eval.records import EpisodeRow, EvalReport, compare, compare_returns, plus_minus

MAX_EVENTS = 60


@dataclass(frozen=True, slots=True)
class CurvePoint:
    """One evaluation during training."""

    env_steps: int
    """Control steps of training so far, over all environments."""
    wall_s: float
    """Seconds of training so far."""
    successes: int
    """Solved episodes of this evaluation."""
    n: int
    """Episodes of this evaluation."""


@dataclass(frozen=True, slots=True)
class Film:
    """An mp4 file to embed."""

    label: str
    """``before`` or ``after``, as the reader should call it."""
    path: Path
    """H.264 in mp4."""
    caption: str = ""
    """What is to be seen: also what a screen reader says."""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A run on an arm, simulated or real, behind the safety gate."""

    target_hz: float
    """Wanted rate of the control loop."""
    measured_hz: float
    """Mean rate that was reached."""
    jitter_ms: Mapping[str, float] = field(default_factory=dict[str, float])
    """Distribution of |period - target|, in milliseconds, such as p50, p99, max."""
    steps: int = 0
    """Control steps."""
    missed_deadlines: int | None = None
    """Steps whose command came too late; None where nobody counted."""
    interventions: Mapping[str, int] = field(default_factory=dict[str, int])
    """How often the gate changed a command, by reason."""
    events: Sequence[Mapping[str, Any]] = ()
    """Records of the audit log: ``t_s``, ``kind`` and what else was noted."""
    arm: str = ""
    """What moved, such as ``simulated Franka``."""
    summary: str = ""
    """One sentence, such as ``link cut at 4.2 s, arm at rest 60 ms later``."""


@dataclass(frozen=True, slots=True)
class Report:
    """The page. Sections without content are left out."""

    title: str
    """Heading and window title."""
    summary: str = ""
    """One or two sentences below it."""
    before: EvalReport | None = None
    """Evaluation of the starting policy."""
    after: EvalReport | None = None
    """Evaluation of the fine-tuned policy, best on the same seeds."""
    curve: Sequence[CurvePoint] = ()
    """Evaluations during training, in order."""
    films: Sequence[Film] = ()
    """Episodes, before and after."""
    deployment: Deployment | None = None
    """A run on an arm."""
    robustness: str = ""
    """HTML of ``robustness_html``, where the simulator was randomised."""
    notes: Sequence[str] = ()
    """What a reader should know before trusting the numbers."""
    config: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """The configuration of the run."""
    provenance: Mapping[str, Any] = field(default_factory=dict[str, Any])
    """Revision, versions, machine, seed, command (``Provenance.to_json``)."""

    def to_html(self) -> str:
        """The whole page as text."""
        style = (files("robopo.eval") / "report.css").read_text(encoding="utf-8")
        sections = [
            self._headline(),
            _section("Success during training", _curve(self.curve)) if self.curve and self._has_success() else "",
            _section("Episodes to watch", _films(self.films)) if self.films else "",
            _section("Deployment", _deployment(self.deployment)) if self.deployment else "",
            _section("Where the world differs", self.robustness) if self.robustness else "",
            _section("Every episode", _episodes(self.before, self.after)) if self.before or self.after else "",
            _section("Read with care", _list(self.notes)) if self.notes else "",
            _section("Configuration", _config(self.config)) if self.config else "",
            _section("Provenance", _pairs(self.provenance)) if self.provenance else "",
        ]
        return (
            '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
            '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
            f"<title>{escape(self.title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
            + "\n".join(section for section in sections if section)
            + "\n</main>\n</body>\n</html>\n"
        )

    def write_html(self, path: Path) -> Path:
        """Write the page to ``path``, all of it or nothing."""
        write_text(Path(path), self.to_html())
        return Path(path)

    def _headline(self) -> str:
        summary = f'<p class="lead">{escape(self.summary)}</p>' if self.summary else ""
        head = f"<header><h1>{escape(self.title)}</h1>{summary}</header>"
        reports = [(name, report) for name, report in (("before", self.before), ("after", self.after)) if report]
        if not reports:
            return head
        if not self._has_success():
            return f'{head}\n<section class="headline">{_returns(reports)}{self._facts()}</section>'
        rates = ' <span class="arrow" aria-hidden="true">→</span> '.join(
            f'<span class="rate {name}">{_percent(report.success.point)}<small> % {name}</small></span>'
            for name, report in reports
        )
        bars = [Bar(name.capitalize(), name, report.success) for name, report in reports]
        counts = "; ".join(
            f"{name} fine-tuning {report.successes} of {report.n} episodes solved, {percent_range(report.success)}"
            for name, report in reports
        )
        text = f"<p>{escape(counts[0].upper() + counts[1:])}, 95 % intervals. {escape(self._paired())}</p>"
        chart = f"<figure>{interval_chart(bars)}</figure>"
        return (
            f'{head}\n<section class="headline"><div class="rates">{rates}</div>{text}{chart}{self._facts()}</section>'
        )

    def _paired(self) -> str:
        if self.before is None or self.after is None:
            return ""
        if sorted(self.before.seeds) != sorted(self.after.seeds):
            return "The two evaluations ran on different episodes."
        gained, lost, p_value = compare(self.before, self.after)
        chance = "p < 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
        return (
            f"On the same episodes, fine-tuning solved {gained} that failed before and lost {lost} that were solved "
            f"({chance}, exact sign test)."
        )

    def _has_success(self) -> bool:
        """Whether rates mean something; a page without an evaluation takes them as they are."""
        reports = [report for report in (self.before, self.after) if report]
        return not reports or any(report.has_success for report in reports)

    def _facts(self) -> str:
        facts: dict[str, str] = {}
        shown = (("Mean episode length", "mean_steps"), ("Mean return", "mean_return"))
        for name, of in shown if self._has_success() else shown[:1]:
            values = [f"{getattr(report, of):.4g}" for report in (self.before, self.after) if report]
            facts[name + (" (steps)" if of == "mean_steps" else "")] = " → ".join(values)
        if self._has_success():
            ends = [f"{_percent(report.success_at_end.point)} %" for report in (self.before, self.after) if report]
            facts["Solved at the last step"] = " → ".join(ends)
        if self.curve:
            facts["Training steps"] = f"{self.curve[-1].env_steps:,}"
            facts["Training time"] = _duration(self.curve[-1].wall_s)
        return _definition_list("facts", facts)


def _returns(reports: Sequence[tuple[str, EvalReport]]) -> str:
    """The headline of a task without success: mean returns with their standard errors."""
    shown = ' <span class="arrow" aria-hidden="true">→</span> '.join(
        f'<span class="rate {name}">{report.mean_return:.4g}<small> {name}</small></span>' for name, report in reports
    )
    said = "; ".join(
        f"{name} fine-tuning a mean return of {plus_minus(report.mean_return, report.return_sem)} "
        f"over {report.n} episodes"
        for name, report in reports
    )
    text = f"{said[0].upper() + said[1:]} (± standard error). This task has no success: the return is what counts."
    if len(reports) == 2 and sorted(reports[0][1].seeds) == sorted(reports[1][1].seeds):
        change = compare_returns(reports[0][1], reports[1][1])
        text += f" On the same episodes the return changed by {plus_minus(change.mean, change.sem)}."
    return f'<div class="rates">{shown}</div><p>{escape(text)}</p>'


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _curve(points: Sequence[CurvePoint]) -> str:
    rates = [wilson(point.successes, point.n) for point in points]
    longest = points[-1].wall_s
    unit, size = ("hours", 3600) if longest >= 7200 else ("minutes", 60) if longest >= 120 else ("seconds", 1)
    steps = rate_curve([point.env_steps for point in points], rates, "environment steps")
    wall = rate_curve([point.wall_s / size for point in points], rates, f"training time ({unit})")
    rows = [
        [f"{point.env_steps:,}", _duration(point.wall_s), f"{point.successes} of {point.n}", percent_range(rate)]
        for point, rate in zip(points, rates, strict=True)
    ]
    table = _table("Each evaluation during training", ["Steps", "Time", "Solved", "Rate (95 % interval)"], rows)
    return (
        f'<div class="charts"><figure>{steps}</figure><figure>{wall}</figure></div>'
        '<p class="note">Band: 95 % Wilson interval of each evaluation.</p>'
        f"<details><summary>Numbers</summary>{table}</details>"
    )


def _films(films: Sequence[Film]) -> str:
    return f'<div class="films">{"".join(_film(film) for film in films)}</div>'


def _film(film: Film) -> str:
    try:
        data = base64.b64encode(film.path.read_bytes()).decode("ascii")
    except OSError as error:
        raise DataError(f"can't embed film {film.path} ({error}); record it first or leave it out") from error
    said = escape(f"{film.label}: {film.caption}".removesuffix(": "), quote=True)
    return (
        f'<figure><video controls muted loop playsinline preload="metadata" aria-label="{said}">'
        f'<source type="video/mp4" src="data:video/mp4;base64,{data}">{said}</video>'
        f'<figcaption><span class="label">{escape(film.label.capitalize())}.</span> '
        f"{escape(film.caption)}</figcaption></figure>"
    )


def _deployment(run: Deployment) -> str:
    facts = {
        **({"Arm": run.arm} if run.arm else {}),
        "Loop rate": f"{run.measured_hz:.4g} of {run.target_hz:.4g} Hz",
        **{f"Jitter {name}": f"{value:.3g} ms" for name, value in run.jitter_ms.items()},
        "Control steps": f"{run.steps:,}",
        **({} if run.missed_deadlines is None else {"Missed deadlines": f"{run.missed_deadlines:,}"}),
        "Gate interventions": f"{sum(run.interventions.values()):,}",
    }
    parts = [f"<p>{escape(run.summary)}</p>" if run.summary else "", _definition_list("facts", facts)]
    if run.interventions:
        rows = [
            [reason, f"{count:,}"] for reason, count in sorted(run.interventions.items(), key=lambda item: -item[1])
        ]
        parts.append(
            "<h3>Why the gate stepped in</h3>" + _table("Changed commands by reason", ["Reason", "Times"], rows)
        )
    if run.events:
        shown = list(run.events)[-MAX_EVENTS:]
        start = float(run.events[0].get("t_s", 0.0))
        rows = [[f"{float(e.get('t_s', 0.0)) - start:.3f}", str(e.get("kind", "")), _detail(e)] for e in shown]
        caption = f"Last {len(shown)} of {len(run.events)} events; time from the first one"
        parts.append("<h3>Events</h3>" + _table(caption, ["Time (s)", "Event", "Detail"], rows, text=(1, 2)))
    return "".join(parts)


def _detail(event: Mapping[str, Any]) -> str:
    said = {name: value for name, value in event.items() if name not in ("t_s", "kind") and value not in (None, "")}
    return ", ".join(f"{name}: {_plain(value)}" for name, value in said.items())


def _episodes(before: EvalReport | None, after: EvalReport | None) -> str:
    reports = [(name, report) for name, report in (("Before", before), ("After", after)) if report]
    by_seed = [(report.has_success, {row.seed: row for row in report.rows}) for _, report in reports]
    seeds = list(dict.fromkeys(seed for _, rows_of in by_seed for seed in rows_of))
    header = ["Seed", *(f"{name}: {what}" for name, _ in reports for what in ("outcome", "steps", "return"))]
    rows = [
        [str(seed), *(cell for rated, rows_of in by_seed for cell in _cells(rows_of.get(seed), rated=rated))]
        for seed in seeds
    ]
    table = _table("Episodes by seed; the same seed is the same start", header, rows)
    return f"<details><summary>Table of {len(seeds)} episodes</summary>{table}</details>"


def _cells(row: EpisodeRow | None, *, rated: bool) -> list[str]:
    if row is None:
        return ["not run", "", ""]
    missed = "✗ failed" if rated else "ended early" if row.terminated else "ran its time"
    outcome = "✓ solved" if row.success else "✗ diverged" if row.diverged else missed
    return [outcome, str(row.steps), f"{row.return_:.4g}"]


def _config(config: Mapping[str, Any]) -> str:
    text = escape(json.dumps(config, indent=2, default=str))
    return f"<details><summary>All settings</summary><pre>{text}</pre></details>"


def _pairs(facts: Mapping[str, Any]) -> str:
    return _definition_list("pairs", {name.replace("_", " "): _plain(value) for name, value in facts.items()})


def _definition_list(kind: str, facts: Mapping[str, str]) -> str:
    items = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(v)}</dd></div>" for k, v in facts.items())
    if kind == "pairs":  # two columns that line up need the bare terms
        items = items.replace("<div>", "").replace("</div>", "")
    return f'<dl class="{kind}">{items}</dl>'


def _list(items: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(item)}</li>' for item in items)}</ul>"


def _table(caption: str, header: Sequence[str], rows: Sequence[Sequence[str]], text: Sequence[int] = ()) -> str:
    """A table whose first column heads its rows; columns in ``text`` hold words and wrap."""

    def cell(index: int, value: str) -> str:
        if index == 0:
            return f'<th scope="row">{escape(value)}</th>'
        kind = ' class="text"' if index in text else ' class="no"' if value.startswith("✗") else ""
        return f"<td{kind}>{escape(value)}</td>"

    head = "".join(
        f'<th scope="col"{" class=text" if i in text else ""}>{escape(name)}</th>' for i, name in enumerate(header)
    )
    body = "".join(f"<tr>{''.join(cell(i, value) for i, value in enumerate(row))}</tr>" for row in rows)
    table = f"<table><caption>{escape(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"
    # Wide tables scroll sideways on a phone; the tab stop lets a keyboard do it too.
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(caption)}">{table}</div>'


def _plain(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_plain(entry)}" for name, entry in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(_plain(entry) for entry in value)
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    return "none" if value is None or value == "" else str(value)


def _percent(rate: float) -> str:
    return f"{100 * rate:.1f}".removesuffix(".0")


def _duration(seconds: float) -> str:
    whole = round(seconds)
    if whole < 60:
        return f"{seconds:.1f} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"
