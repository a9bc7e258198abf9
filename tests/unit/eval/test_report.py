"""The report is one well-formed file that says the right numbers and reaches for nothing outside of itself."""

from __future__ import annotations

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from robopo.errors import DataError
from robopo.eval.charts import Bar, interval_chart, rate_curve
from robopo.eval.intervals import wilson
from robopo.eval.records import EpisodeRow, EvalReport
from robopo.eval.report import CurvePoint, Deployment, Film, Report

VOID = {"meta", "source", "line", "rect", "circle", "polygon", "polyline"}


class Outline(HTMLParser):
    """Fails on tags that don't nest; collects tags, attributes and text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""

    def handle_starttag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attrs) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data) -> None:
        if "style" not in self.open:
            self.text += data

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def outline(html: str) -> Outline:
    parser = Outline()
    parser.feed(html)
    assert parser.open == []
    parser.text = re.sub(r"\s+", " ", parser.text)
    return parser


def evaluation(successes: int, n: int) -> EvalReport:
    return EvalReport(
        tuple(
            EpisodeRow(50 + i, i < successes, i < successes, 10, float(i < successes), i < successes) for i in range(n)
        )
    )


@pytest.fixture
def report(tmp_path: Path) -> Report:
    (tmp_path / "a.mp4").write_bytes(b"film")
    return Report(
        title="Lift <with> care",
        summary="It & more",
        before=evaluation(2, 10),
        after=evaluation(9, 10),
        curve=[CurvePoint(0, 0.0, 2, 10), CurvePoint(64_000, 7300.0, 9, 10)],
        films=[Film("after", tmp_path / "a.mp4", 'the "cube" rises')],
        deployment=Deployment(
            target_hz=20,
            measured_hz=19.9,
            jitter_ms={"p99": 1.25},
            steps=1200,
            interventions={"velocity": 3, "workspace": 4},
            events=[{"t_s": 5.0, "kind": "link_cut"}, {"t_s": 5.06, "kind": "arm_at_rest", "peak_rad_s": 0.001}],
            arm="simulated arm",
            summary="Link cut, arm at rest after 60 ms.",
        ),
        notes=["one seed"],
        config={"algo": {"clip": 0.01}},
        provenance={"git_revision": "abc123", "git_dirty": False, "versions": {"torch": "2.11"}, "seed": None},
    )


def test_everything_is_said(report: Report, tmp_path: Path) -> None:
    page = outline(report.write_html(tmp_path / "out" / "report.html").read_text())
    for expected in (
        "Lift <with> care", "It & more", "20 % before", "90 % after",
        "2 of 10 episodes solved, 20 % (6 to 51 %)",  # Wilson: 0.0567 to 0.5098
        "solved 7 that failed before and lost 0", "p = 0.016",  # 2 / 2^7
        "64,000", "2 h 1 min", "19.9 of 20 Hz", "1.25 ms", "velocity", "arm_at_rest", "0.060", "peak_rad_s: 0.001",
        "Table of 10 episodes", "✓ solved", "✗ failed", "one seed", '"clip": 0.01', "abc123", "torch 2.11", "none",
    ):  # fmt: skip
        assert expected in page.text, expected


def test_nothing_outside_is_needed_and_nothing_can_be_injected(report: Report) -> None:
    html = report.to_html()
    page = outline(html)
    assert not re.search(r"https?://|@import|url\(|<script|<link", html)
    assert "<with>" not in html
    (source,) = page.all("source")
    assert base64.b64decode((source["src"] or "").removeprefix("data:video/mp4;base64,")) == b"film"


def test_it_can_be_read_aloud_and_on_a_phone(report: Report) -> None:
    html = report.to_html()
    page = outline(html)
    assert page.all("html") == [{"lang": "en"}]
    assert any(meta.get("name") == "viewport" for meta in page.all("meta"))
    assert "prefers-color-scheme: dark" in html
    assert all(svg["role"] == "img" and svg["aria-label"] for svg in page.all("svg"))
    assert page.all("video")[0]["aria-label"] == 'after: the "cube" rises'
    assert len(page.all("caption")) == len(page.all("table")) == 4
    assert {th.get("scope") for th in page.all("th")} == {"col", "row"}


def test_empty_sections_are_left_out() -> None:
    page = outline(Report("Only a title").to_html())
    assert page.all("section") == []
    single = outline(Report("One evaluation", after=evaluation(3, 4)).to_html())
    assert "75 % after" in single.text
    assert "before" not in single.text
    assert len(single.all("section")) == 2


def test_different_episodes_are_not_paired() -> None:
    page = outline(Report("x", before=evaluation(1, 3), after=evaluation(1, 4)).to_html())
    assert "The two evaluations ran on different episodes." in page.text
    assert "not run" in page.text


def returns(*values: float, first_seed: int = 50) -> EvalReport:
    rows = tuple(EpisodeRow(first_seed + i, False, False, 10, value, i == 0) for i, value in enumerate(values))
    return EvalReport(rows, {"has_success": False})


def test_a_task_without_success_is_told_by_its_returns() -> None:
    """Means 2 and 12; deviations -1, 0, 1 give 1 / sqrt(3) = .58; changes 9, 10, 11 the same."""
    report = Report("Run", before=returns(1, 2, 3), after=returns(10, 12, 14), curve=[CurvePoint(0, 0.0, 0, 3)])
    page = outline(report.to_html())
    for expected in (
        "2 before", "12 after", "Before fine-tuning a mean return of 2 ± 0.58 over 3 episodes",
        "after fine-tuning a mean return of 12 ± 1.2", "the return changed by 10 ± 0.58", "has no success",
        "ended early", "ran its time",
    ):  # fmt: skip
        assert expected in page.text, expected
    for wrong in ("solved", "%", "failed", "Success during training"):
        assert wrong not in page.text, wrong
    other = outline(Report("Run", before=returns(1, 2), after=returns(3, 4, first_seed=0)).to_html())
    assert "changed by" not in other.text
    alone = outline(Report("Run", after=returns(7)).to_html())
    assert "After fine-tuning a mean return of 7 over 1 episodes" in alone.text


def test_a_missing_film_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"can't embed film .*none\.mp4"):
        Report("x", films=[Film("after", tmp_path / "none.mp4")]).to_html()


def test_charts_say_what_they_show() -> None:
    chart = interval_chart([Bar("After", "after", wilson(5, 10))])
    assert "After: 50 % (24 to 76 %)" in chart
    curve = rate_curve([0.0, 500.0, 1000.0], [wilson(k, 10) for k in (1, 5, 9)], "environment steps")
    assert "from 10% to 90%, 3 evaluations" in curve
    assert [label for label in ("0", "200", "1k") if f">{label}<" in curve] == ["0", "200", "1k"]
    assert rate_curve([0.0], [wilson(1, 2)], "steps").count("<circle") == 1
