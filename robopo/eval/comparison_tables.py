"""Tables of a comparison, as Markdown and as a page that holds everything it shows."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import NamedTuple

from robopo.eval.comparison import Axis, Band, Measure, MethodResult, Reach, TaskResult, Versus, middle

ABSENT = "–"
READING = (
    "Results: REPORT episodes of the last checkpoint, pooled over training seeds, with the 95 % Wilson interval.",
    "The interval counts episodes; how much training seeds differ is in the column per seed.",
    "Steps and time to a threshold: the first SELECTION evaluation at or above it, median and range over seeds.",
    "Against the reference: episodes won (+) and lost (−) on the same starts; exact two-sided sign test.",
    "Pairs of one training seed share their policies, so p is optimistic: look at the seeds too.",
    "Time is wall clock of processes that shared this machine: compare it within this study only.",
)


class Table(NamedTuple):
    """Cells of text; the first column heads its row."""

    caption: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def result_table(task: TaskResult) -> Table:
    """Final numbers, and when the thresholds were reached."""
    limits = [_number(limit, task.measure) for limit in task.thresholds]
    value = ("solved", "rate (95 %)") if task.measure is Measure.SUCCESS else ("episodes", "mean return")
    header = (
        "method",
        "training seeds",
        *value,
        "per seed",
        *(text for limit in limits for text in (f"steps to {limit}", f"time to {limit}")),
        "env steps",
        "wall clock",
        "sum of KL",
        f"against {task.reference}",
    )
    return Table(f"{task.task}: results", header, tuple(_result_row(task, method) for method in task.methods))


def equal_steps_table(task: TaskResult) -> Table:
    """Values on the curves at the most control steps that all runs took."""
    at = "no run was evaluated" if task.equal_steps is None else f"after {task.equal_steps:,.0f} control steps"
    rows = tuple(
        (method.method, _band(method.at_equal_steps, task.measure)) for method in task.methods if not method.is_start
    )
    return Table(f"{task.task}: {at}", ("method", f"{task.measure}, mean (range over seeds)"), rows)


def equal_kl_table(task: TaskResult) -> Table:
    """Values on the curves at the largest KL that all methods with a logged KL reached."""
    at = "no method logs its KL" if task.equal_kl is None else f"when the KL of all updates sums to {task.equal_kl:.3g}"
    rows = tuple(
        (
            method.method,
            _band(method.at_equal_kl, task.measure) if method.at_equal_kl else "KL not logged",
            _kl(method),
        )
        for method in task.methods
        if not method.is_start
    )
    header = ("method", f"{task.measure}, mean (range over seeds)", "KL of the whole run")
    return Table(f"{task.task}: {at}", header, rows)


def all_tables(tasks: Sequence[TaskResult]) -> list[Table]:
    """Those of every task, in order."""
    return [make(task) for task in tasks for make in (result_table, equal_steps_table, equal_kl_table)]


def table_markdown(table: Table) -> str:
    """Caption and table."""
    lines = [_line(table.header), _line(["---"] * len(table.header)), *(_line(row) for row in table.rows)]
    return f"**{table.caption}**\n\n" + "\n".join(lines)


def to_markdown(title: str, tables: Sequence[Table], images: Sequence[str] = (), notes: Sequence[str] = ()) -> str:
    """The tables, then the pictures at paths relative to the file, then how to read them."""
    parts = [f"# {title}", *(table_markdown(table) for table in tables)]
    parts += [f"![{Path(image).stem.replace('_', ' ')}]({image})" for image in images]
    parts.append("\n".join(f"- {note}" for note in (*notes, *READING)))
    return "\n\n".join(parts) + "\n"


def to_html(title: str, tables: Sequence[Table], images: Mapping[str, Path], notes: Sequence[str] = ()) -> str:
    """One page; images: description -> PNG file, embedded."""
    style = (files("robopo.eval") / "report.css").read_text(encoding="utf-8")
    figures = "".join(f"<figure>{_picture(said, path)}</figure>" for said, path in images.items())
    sections = [f"<section><h2>{escape(table.caption)}</h2>{_html_table(table)}</section>" for table in tables]
    read = "".join(f"<li>{escape(note)}</li>" for note in (*notes, *READING))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}img {{ max-width: 100%; height: auto; }}\n</style>\n</head>\n"
        f"<body>\n<main>\n<header><h1>{escape(title)}</h1></header>\n<section><h2>Curves</h2>{figures}</section>\n"
        + "\n".join(sections)
        + f"\n<section><h2>Read with care</h2><ul>{read}</ul></section>\n</main>\n</body>\n</html>\n"
    )


def _result_row(task: TaskResult, method: MethodResult) -> tuple[str, ...]:
    records = method.records
    if task.measure is Measure.SUCCESS:
        rate = f"{method.rate.point:.1%} [{method.rate.low:.1%}, {method.rate.high:.1%}]" if method.rate else ABSENT
        value = (f"{method.successes} of {method.n}" if method.n else ABSENT, rate)
    else:
        known = [final for final in method.finals if final is not None]
        value = (str(method.n), _number(sum(known) / len(known), task.measure) if known else ABSENT)
    finals = ", ".join(ABSENT if final is None else _number(final, task.measure) for final in method.finals)
    trained = [] if method.is_start else list(records)
    reach = [
        ABSENT if method.is_start else _reached(method.reached[limit], axis)
        for limit in task.thresholds
        for axis in (Axis.ENV_STEPS, Axis.WALL_S)
    ]
    return (
        f"{method.method} (start)" if method.is_start else method.method,
        ", ".join(str(record.seed) for record in records),
        *value,
        finals,
        *reach,
        f"{sum(r.env_steps for r in trained) / len(trained):,.0f}" if trained else ABSENT,
        _seconds(sum(r.wall_s for r in trained) / len(trained)) if trained else ABSENT,
        ABSENT if method.is_start else _kl(method),
        _versus(method.versus, task.measure) if method.versus else ABSENT,
    )


def _reached(values: Sequence[Reach | None], axis: Axis) -> str:
    found = [getattr(value, axis) for value in values if value is not None]
    if not found:
        return "not reached"
    said = _steps if axis is Axis.ENV_STEPS else _seconds
    spread = said(min(found)) if min(found) == max(found) else f"{said(min(found))} to {said(max(found))}"
    center = middle(values, axis)
    if center is None:
        return f"{len(found)} of {len(values)} seeds: {spread}"
    return said(center) if min(found) == max(found) else f"{said(center)} ({spread})"


def _kl(method: MethodResult) -> str:
    known = [record.kl for record in method.records if record.kl is not None]
    return f"{sum(known) / len(known):.3g}" if known else "not logged"


def _versus(found: Versus, measure: Measure) -> str:
    chance = "p < 0.001" if found.p_value < 0.001 else f"p = {found.p_value:.3f}"
    size = f"{100 * found.difference:+.1f} points" if measure is Measure.SUCCESS else f"{found.difference:+.3g}"
    return f"{size} (+{found.better}, −{found.worse}, {chance})"


def _band(band: Band | None, measure: Measure) -> str:
    if band is None:
        return ABSENT
    return f"{_number(band.mean, measure)} ({_number(band.low, measure)} to {_number(band.high, measure)})"


def _number(value: float, measure: Measure) -> str:
    return f"{100 * value:.3g} %" if measure is Measure.SUCCESS else f"{value:.4g}"


def _steps(value: float) -> str:
    return f"{value / 1e6:.3g}M" if value >= 1e6 else f"{value / 1e3:.3g}k" if value >= 1e3 else f"{value:.0f}"


def _seconds(value: float) -> str:
    return f"{value / 3600:.2f} h" if value >= 3600 else f"{value / 60:.1f} min" if value >= 120 else f"{value:.0f} s"


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def _picture(said: str, path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<img alt="{escape(said, quote=True)}" src="data:image/png;base64,{data}">'


def _html_table(table: Table) -> str:
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in table.header)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(text)}</td>" for text in row[1:])}</tr>'
        for row in table.rows
    )
    # Wide tables scroll sideways on a phone; the tab stop lets a keyboard do it too.
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(table.caption)}"><table>'
        f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )
