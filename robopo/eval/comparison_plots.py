"""Curves of a comparison as PNG and SVG: one panel per task, one line per method, a band over its seeds."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from robopo.eval.comparison import Axis, Measure, TaskResult, seed_curve

LABELS = {
    Axis.ENV_STEPS: "control steps of training",
    Axis.WALL_S: "training time (s)",
    Axis.KL: "sum of the KL of all updates",
}
COLORS = ("#0b7a68", "#c2571a", "#4457a6", "#a23b72", "#7a6a00", "#3c8dbc", "#6b6b6b", "#8c3b3b")
"""Told apart in print and by colour-blind readers together with the markers."""
MARKERS = "osD^vPX*"


def plot_curves(tasks: Sequence[TaskResult], axis: Axis, folder: Path) -> Path | None:
    """Write ``success_<axis>.png`` and ``.svg`` to ``folder``; returns the PNG, or None where nothing has this axis."""
    # half a second to import, and only this function draws
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    if not any(seed_curve(method.records, axis) for task in tasks for method in task.methods):
        return None
    figure = Figure(figsize=(5.2 * len(tasks), 4.0), layout="constrained")
    FigureCanvasAgg(figure)
    for index, task in enumerate(tasks):
        panel = figure.add_subplot(1, len(tasks), index + 1)
        _draw(panel, task, axis)
    folder.mkdir(parents=True, exist_ok=True)
    png = folder / f"success_{axis}.png"
    figure.savefig(png, dpi=150)
    figure.savefig(png.with_suffix(".svg"))
    return png


def describe(tasks: Sequence[TaskResult], axis: Axis) -> str:
    """What the picture shows, in words."""
    names = ", ".join(task.task for task in tasks)
    return f"Success or return over {LABELS[axis]} on {names}: mean and range over training seeds"


def _draw(panel: Any, task: TaskResult, axis: Axis) -> None:
    trained = [method for method in task.methods if not method.is_start]
    for index, method in enumerate(trained):
        curve = seed_curve(method.records, axis)
        if curve is None:
            continue
        color, marker = COLORS[index % len(COLORS)], MARKERS[index % len(MARKERS)]
        panel.plot(curve.x, curve.mean, color=color, marker=marker, markersize=3.5, linewidth=1.5, label=method.method)
        panel.fill_between(curve.x, curve.low, curve.high, color=color, alpha=0.15, linewidth=0)
    panel.set_title(task.task)
    panel.set_xlabel(LABELS[axis])
    panel.set_ylabel("success rate" if task.measure is Measure.SUCCESS else "mean return")
    if task.measure is Measure.SUCCESS:
        panel.set_ylim(-0.02, 1.02)
    panel.set_xlim(left=0)
    panel.grid(alpha=0.25)
    if panel.get_legend_handles_labels()[0]:
        panel.legend(frameon=False, fontsize="small")
