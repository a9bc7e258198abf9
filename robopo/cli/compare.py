"""``robopo compare``: methods x tasks x seeds from shared starts, at equal control steps, with tables and curves."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from omegaconf import DictConfig, OmegaConf
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.progress import Progress as Bar

from robopo.cli.compare_config import COMPARE, CompareConfig, Study, read_study
from robopo.cli.compare_plan import Plan
from robopo.cli.configs import SavedRun, choices, handle_cfg_flag, load_config, to_object
from robopo.cli.jobs import Outcome, Progress, Scheduler, Status, log_path, read_status
from robopo.data.files import write_text
from robopo.errors import CheckpointError, ConfigError
from robopo.eval.comparison import Axis, Measure, RunRecord, TaskResult, analyse, run_record, to_json
from robopo.eval.comparison_plots import describe, plot_curves
from robopo.eval.comparison_tables import all_tables, result_table, table_markdown, to_html, to_markdown
from robopo.eval.provenance import collect_provenance
from robopo.eval.records import EvalReport
from robopo.train.logger import METRICS, read_metrics
from sims.cores import usable_cores

SCHEMA = 1
STUDY = "study.json"
"""In the folder: the chosen options and all values, which ``resume=`` reads."""


class Request(NamedTuple):
    """One invocation, read and checked."""

    config: CompareConfig
    study: Study
    folder: Path
    title: str
    saved: SavedRun


def main(argv: Sequence[str]) -> int:
    """Run what is not done yet, then write the result: 0, 1 when a job failed, 130 or 143 after a signal."""
    console = Console(highlight=False, soft_wrap=True)
    shown = handle_cfg_flag("compare", argv, COMPARE)
    if shown is not None:
        console.print(shown, markup=False)
        return 0
    request = read_request(argv)
    plan = Plan(request.study, request.folder.resolve())
    jobs = plan.jobs()
    request.folder.mkdir(parents=True, exist_ok=True)
    kept = {"title": request.title, "choices": request.saved.choices, "config": request.saved.values}
    write_text(request.folder / STUDY, json.dumps(kept, indent=1) + "\n")
    processes = request.config.processes or usable_cores()
    console.print(f"{len(jobs)} jobs, {processes} at a time, in {request.folder}", markup=False)
    with JobBar(Console(stderr=True)) as bar:
        outcome = Scheduler(request.folder, jobs, processes, on_change=bar.update).run()
    if outcome.stopped_by is not None:
        again = shlex.join(["robopo", "compare", f"resume={request.folder}"])
        console.print(f"stopped; continue with: {again}", markup=False)
        return 128 + outcome.stopped_by
    for name, said in outcome.failed.items():
        console.print(f"{name} failed ({log_path(request.folder, name)}):\n{said}\n", markup=False)
    results = [collect_task(plan, task, read_status(request.folder)) for task in request.study.tasks]
    page = write_results(request, results, outcome)
    for result in results:
        console.print(table_markdown(result_table(result)), markup=False)
    console.print(str(page), markup=False)
    return 1 if outcome.failed else 0


def read_request(argv: Sequence[str]) -> Request:
    """Compose the study of the command line, or take the one that ``resume=`` names."""
    source = next((text.partition("=")[2] for text in argv if text.startswith("resume=")), "")
    if source and source != "null":
        folder = Path(source)
        rest = [text for text in argv if not text.startswith("resume=")]
        title, saved = _read_saved(folder)
        node = _restored(saved, rest)
        config: CompareConfig = to_object(node)
        return Request(config, read_study(config), folder, title, SavedRun(saved.choices, _plain(node)))
    node = load_config("compare", argv, COMPARE)
    config = to_object(node)
    saved = SavedRun(choices("compare", argv), _plain(node))
    title = saved.choices["study"]
    now = datetime.now().astimezone()
    folder = Path(config.out) if config.out else Path("runs/compare") / f"{now:%Y%m%d-%H%M%S}-{title}"
    if folder.exists() and not (folder / STUDY).exists() and any(folder.iterdir()):
        raise ConfigError(f"{folder} holds something else; choose another out=")
    return Request(config, read_study(config), folder, title, saved)


def collect_task(plan: Plan, task: str, status: dict[str, Status]) -> TaskResult:
    """Read the finished runs of one task; what is missing stays out."""
    study = plan.study
    settings, seeds = study.tasks[task], study.config.seeds
    finals = {
        (name, seed): report
        for name in (*plan.starts(), *study.methods)
        for seed in seeds
        if (report := _final(plan.report(task, seed, name))) is not None
    }
    known = all(report.has_success for report in finals.values())
    measure = settings.measure or (Measure.SUCCESS if known else Measure.RETURN)
    records = [
        RunRecord(start, seed, final=finals[start, seed], is_start=True)
        for start in plan.starts()
        for seed in seeds
        if (start, seed) in finals
    ]
    records += [
        run_record(
            read_metrics(plan.run(task, seed, method) / METRICS),
            finals.get((method, seed)),
            method=method,
            seed=seed,
            measure=measure,
            kl_metric=study.config.kl_metric,
        )
        for method in study.methods
        for seed in seeds
        if status.get(f"{task}/seed{seed}/{method}") is Status.DONE
    ]
    thresholds = settings.thresholds
    if thresholds is None:
        thresholds = (0.95,) if measure is Measure.SUCCESS else ()
    reference = study.config.reference if study.config.reference in study.methods else ""
    return analyse(task, records, measure=measure, thresholds=thresholds, reference=reference)


def write_results(request: Request, results: Sequence[TaskResult], outcome: Outcome) -> Path:
    """compare.json, table.md, curves and compare.html; returns the page."""
    folder, study = request.folder, request.study
    title = f"{request.title}: {len(study.methods)} methods, {len(study.config.seeds)} seeds"
    pictures = {describe(results, axis): path for axis in Axis if (path := plot_curves(results, axis, folder))}
    notes = [f"Every run was given {study.config.env_steps:,} control steps, rounded up to whole iterations."]
    if missing := [*outcome.failed, *outcome.skipped]:
        notes.insert(0, f"Missing, because they failed or needed something that did: {', '.join(missing)}.")
    tables = all_tables(results)
    tree = {
        "schema": SCHEMA,
        "study": request.saved.values["study"],
        "tasks": [to_json(result) for result in results],
        "failed": outcome.failed,
        "skipped": outcome.skipped,
        "provenance": collect_provenance().to_json(),
    }
    write_text(folder / "compare.json", json.dumps(tree, indent=1) + "\n")
    write_text(folder / "table.md", to_markdown(title, tables, [path.name for path in pictures.values()], notes))
    page = folder / "compare.html"
    write_text(page, to_html(title, tables, pictures, notes))
    return page


class JobBar:
    """A live bar on a terminal; elsewhere a line whenever a job ended, and at least every ``every_s`` seconds."""

    def __init__(self, console: Console, every_s: float = 60.0) -> None:
        self._console, self._every_s = console, every_s
        self._last: tuple[int, int] | None = None
        self._said = time.monotonic()
        self._bar = Bar(
            TextColumn("jobs"),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[text]}"),
            console=console,
            disable=not console.is_terminal,
        )
        self._task: TaskID = self._bar.add_task("jobs", total=None, text="")

    def __enter__(self) -> JobBar:
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    def update(self, progress: Progress) -> None:
        """Show ``progress``."""
        text = progress_line(progress)
        self._bar.update(self._task, total=progress.total, completed=progress.done + progress.failed, text=text)
        now, state = time.monotonic(), (progress.done, progress.failed)
        if not self._console.is_terminal and (state != self._last or now - self._said > self._every_s):
            self._last, self._said = state, now
            self._console.print(f"{progress.done}/{progress.total} jobs  {text}", soft_wrap=True, markup=False)


def progress_line(progress: Progress) -> str:
    """For example ``2 running (lift/seed3/dppo, lift/seed3/fpo)  0 failed  eta 12 min``."""
    running = f"{len(progress.running)} running" + (f" ({', '.join(progress.running)})" if progress.running else "")
    text = f"{running}  {progress.failed} failed"
    if progress.done + progress.failed == progress.total:
        return text
    eta = progress.eta_s
    return f"{text}  eta " + ("?" if eta is None else f"{eta:.0f} s" if eta < 120 else f"{eta / 60:.0f} min")


def _final(folder: Path) -> EvalReport | None:
    path = folder / "report.json"
    return EvalReport.read_json(path) if path.is_file() else None


def _read_saved(folder: Path) -> tuple[str, SavedRun]:
    path = folder / STUDY
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return str(tree["title"]), SavedRun(tree["choices"], tree["config"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"{path} can't be read ({error}); only folders written by robopo compare can be continued"
        ) from error


def _restored(saved: SavedRun, overrides: Sequence[str]) -> DictConfig:
    """The values that a comparison was started with, whatever its study's file says now, and a few changes."""
    keys = [text.partition("=")[0] for text in overrides]
    if "study" in keys:
        raise ConfigError("a comparison that is resumed keeps its study; leave study= out")
    node = load_config("compare", [f"study={saved.choices['study']}", *overrides], COMPARE)
    changes = {key: OmegaConf.select(node, key) for key in keys}
    study = {f"study.{name}": value for name, value in saved.values["study"].items()}
    OmegaConf.set_struct(node, False)
    for key, value in ({name: v for name, v in saved.values.items() if name != "study"} | study | changes).items():
        OmegaConf.update(node, key, value, merge=False)
    return node


def _plain(node: DictConfig) -> dict[str, Any]:
    tree: Any = OmegaConf.to_container(node, enum_to_str=True)
    return tree
