"""Small vector charts that follow the page's colours and carry their own description."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import floor, log10
from typing import NamedTuple

from robopo.eval.intervals import Interval

WIDTH, HEIGHT = 420, 250
LEFT, RIGHT, TOP, BOTTOM = 46, 14, 12, 44


class Bar(NamedTuple):
    """One rate with its interval; ``kind`` (before or after) chooses the colour."""

    name: str
    kind: str
    rate: Interval


def interval_chart(bars: Sequence[Bar]) -> str:
    """Each rate as a dot on a 0 to 100 % scale, its interval as a band, one row each."""
    row, left, width = 34, 58, 420
    height = row * len(bars) + 30

    def x(rate: float) -> float:
        return left + rate * (width - left - 24)

    parts = [
        f'<line class="grid" x1="{x(tick):.1f}" x2="{x(tick):.1f}" y1="0" y2="{height - 24}"/>'
        f'<text x="{x(tick):.1f}" y="{height - 6}" text-anchor="middle">{tick:.0%}</text>'
        for tick in (0.0, 0.25, 0.5, 0.75, 1.0)
    ]
    for index, bar in enumerate(bars):
        middle = row * index + row / 2
        low, high = x(bar.rate.low), x(bar.rate.high)
        parts.append(
            f'<text class="name" x="0" y="{middle + 4:.1f}">{escape(bar.name)}</text>'
            f'<rect class="{bar.kind}-band" x="{low:.1f}" y="{middle - 9:.1f}" width="{max(high - low, 1):.1f}" '
            f'height="18" rx="4"/><circle class="{bar.kind}-dot" cx="{x(bar.rate.point):.1f}" cy="{middle:.1f}" r="6"/>'
        )
    said = "; ".join(f"{bar.name}: {percent_range(bar.rate)}" for bar in bars)
    return _svg(width, height, f"Success rates with 95 % intervals. {said}", parts, kind="wide")


def rate_curve(x: Sequence[float], rates: Sequence[Interval], x_label: str) -> str:
    """Success rate over ``x`` (rising) with its interval as a band."""
    top = max([*x, 1e-9])

    def at(value: float, rate: float) -> str:
        across = LEFT + value / top * (WIDTH - LEFT - RIGHT)
        return f"{across:.1f},{TOP + (1 - rate) * (HEIGHT - TOP - BOTTOM):.1f}"

    parts = [_y_grid(tick) for tick in (0.0, 0.25, 0.5, 0.75, 1.0)]
    parts += [_x_tick(tick / top, _short(tick)) for tick in _nice_ticks(top)]
    parts.append(f'<text x="{(WIDTH + LEFT) / 2:.0f}" y="{HEIGHT - 4}" text-anchor="middle">{escape(x_label)}</text>')
    upper = [at(value, rate.high) for value, rate in zip(x, rates, strict=True)]
    lower = [at(value, rate.low) for value, rate in zip(x, rates, strict=True)]
    line = [at(value, rate.point) for value, rate in zip(x, rates, strict=True)]
    parts.append(f'<polygon class="after-band" points="{" ".join([*upper, *reversed(lower)])}"/>')
    parts.append(f'<polyline class="after-line" points="{" ".join(line)}"/>')
    for point in line if len(line) <= 40 else line[-1:]:
        across, down = point.split(",")
        parts.append(f'<circle class="after-dot" cx="{across}" cy="{down}" r="3"/>')
    said = f"Success rate over {x_label}: from {rates[0].point:.0%} to {rates[-1].point:.0%}, {len(rates)} evaluations"
    return _svg(WIDTH, HEIGHT, said, parts)


def percent_range(rate: Interval) -> str:
    """For example ``82 % (69 to 90 %)``."""
    # One decimal where rounding would turn 199 of 200 into 100 %.
    return f"{round(100 * rate.point, 1):g} % ({100 * rate.low:.0f} to {100 * rate.high:.0f} %)"


def _svg(width: int, height: int, description: str, parts: Sequence[str], kind: str = "curve") -> str:
    said = escape(description)
    return f'<svg class="{kind}" viewBox="0 0 {width} {height}" role="img" aria-label="{said}">{"".join(parts)}</svg>'


def _y_grid(rate: float) -> str:
    y = TOP + (1 - rate) * (HEIGHT - TOP - BOTTOM)
    return (
        f'<line class="{"axis" if rate == 0 else "grid"}" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'
        f'<text x="{LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{rate:.0%}</text>'
    )


def _x_tick(share: float, text: str) -> str:
    x = LEFT + share * (WIDTH - LEFT - RIGHT)
    y = HEIGHT - BOTTOM
    return (
        f'<line class="axis" x1="{x:.1f}" x2="{x:.1f}" y1="{y}" y2="{y + 4}"/>'
        f'<text x="{x:.1f}" y="{y + 18}" text-anchor="middle">{text}</text>'
    )


def _nice_ticks(top: float) -> list[float]:
    """Three to six round numbers from 0 to at most ``top``."""
    magnitude = 10.0 ** floor(log10(top))
    step = next(m * magnitude for m in (0.2, 0.5, 1, 2) if top / (m * magnitude) < 6)
    return [step * i for i in range(int(top / step + 1e-9) + 1)]


def _short(value: float) -> str:
    for size, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= size:
            return f"{value / size:g}{letter}"
    return f"{value:.10g}"
