"""Pictures and words of a robustness report: a PNG per parameter, and a section for the HTML page."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from html import escape
from pathlib import Path

from robopo.eval.charts import percent_range
from robopo.eval.robustness import Bin, Curve, Cvar, Robustness

COLOR, BAND = "#0b7a68", 0.18


def plot_parameters(report: Robustness, folder: Path) -> dict[str, Path]:
    """Write ``robustness_<parameter>.png`` per parameter that varied to ``folder`` → parameter: path."""
    # half a second to import, and only this function draws
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    folder.mkdir(parents=True, exist_ok=True)
    written: dict[str, Path] = {}
    for curve in report.curves:
        figure = Figure(figsize=(4.6, 3.2), layout="constrained")
        FigureCanvasAgg(figure)
        panel = figure.add_subplot(1, 1, 1)
        x = [part.middle for part in curve.bins]
        low, middle, high = zip(*(_band(part, has_success=report.has_success) for part in curve.bins), strict=True)
        panel.plot(x, middle, color=COLOR, marker="o", markersize=4, linewidth=1.5)
        panel.fill_between(x, low, high, color=COLOR, alpha=BAND, linewidth=0)
        overall = report.success.point if report.has_success else report.mean_return
        panel.axhline(overall, color="0.5", linewidth=1, linestyle="--")
        panel.set_xlabel(curve.parameter)
        panel.set_ylabel("success rate" if report.has_success else "mean return")
        if report.has_success:
            panel.set_ylim(-0.02, 1.02)
        panel.grid(alpha=0.25)
        written[curve.parameter] = folder / f"robustness_{curve.parameter}.png"
        figure.savefig(written[curve.parameter], dpi=120)
    return written


def robustness_html(report: Robustness, pictures: Mapping[str, Path] | None = None) -> str:
    """The inside of a section in the style of robopo/eval/report.py: a sentence, two tables, the pictures embedded."""
    parts = [f"<p>{escape(headline(report))}</p>", _tails(report), _trends(report)]
    for name, path in (pictures or {}).items():
        picture = base64.b64encode(Path(path).read_bytes()).decode()
        said = escape(f"{_measure(report)} over {name}, with 95 % intervals; dashed: over all episodes")
        parts.append(f'<figure><img alt="{said}" src="data:image/png;base64,{picture}"/></figure>')
    return "".join(parts)


def headline(report: Robustness) -> str:
    """One sentence: over how many settings, how often, and where it's worst."""
    rate = percent_range(report.success) if report.has_success else f"return {report.mean_return:.4g}"
    text = f"{rate} over {report.n} episodes in {report.settings} settings"
    if report.worst is None:
        return f"{text}."
    name, part = report.worst
    measured = percent_range(part.success) if report.has_success else f"return {part.mean_return:.4g}"
    return f"{text}; worst where {name} is {_span(part)}: {measured} of {part.n} episodes."


def _tails(report: Robustness) -> str:
    def row(name: str, tail: Cvar) -> str:
        numbers = f"<td>{tail.value:.4g}</td><td>{tail.low:.4g} to {tail.high:.4g}</td>"
        return f'<tr><th scope="row">{name}, worst {100 * tail.alpha:g} %</th>{numbers}</tr>'

    rows = [row("Return", tail) for tail in report.return_cvar]
    if report.has_success:
        rows = [row("Success", tail) for tail in report.success_cvar] + rows
    return _table("Mean over the worst settings (CVaR)", ("", "Mean", "95 % interval"), rows)


def _trends(report: Robustness) -> str:
    rows: list[str] = []
    for curve in report.curves:
        trend, p_value = _trend(curve, has_success=report.has_success)
        worst = min(curve.bins, key=lambda part: _band(part, has_success=report.has_success)[1])
        chance = "p &lt; 0.001" if p_value < 0.001 else f"p = {p_value:.3f}"
        measured = percent_range(worst.success) if report.has_success else f"{worst.mean_return:.4g}"
        rows.append(
            f'<tr><th scope="row">{escape(curve.parameter)}</th><td>{trend:+.2f} ({chance})</td>'
            f"<td>{escape(_span(worst))}</td><td>{escape(measured)}</td></tr>"
        )
    header = ("Parameter", "Trend (Spearman)", "Worst range", _measure(report))
    return _table("What each parameter does, whatever the others were", header, rows) if rows else ""


def _table(caption: str, header: tuple[str, ...], rows: list[str]) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in header)
    table = f"<table><caption>{caption}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    return f'<div class="scroll" tabindex="0" role="region" aria-label="{caption}">{table}</div>'


def _trend(curve: Curve, *, has_success: bool) -> tuple[float, float]:
    return (curve.success_trend, curve.success_p) if has_success else (curve.return_trend, curve.return_p)


def _band(part: Bin, *, has_success: bool) -> tuple[float, float, float]:
    """Lower bound, value, upper bound."""
    if has_success:
        return part.success.low, part.success.point, part.success.high
    half = 1.96 * (part.return_sem or 0.0)
    return part.mean_return - half, part.mean_return, part.mean_return + half


def _span(part: Bin) -> str:
    return f"{part.low:.4g}" if part.low == part.high else f"{part.low:.4g} to {part.high:.4g}"


def _measure(report: Robustness) -> str:
    return "Success rate" if report.has_success else "Mean return"
