"""``robopo demo``: demonstrations, cloning, DPPO, evidence, and a simulated arm behind the gate, in one go.

Each step is the command of the same name with a few settings, so everything here can be repeated by hand; the report
lists those command lines.
"""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from robopo.cli import collect, evaluate, train
from robopo.cli import deploy as deploy_command
from robopo.cli.configs import choices, handle_cfg_flag, load_config, to_object
from robopo.cli.demo_config import DEMO, DemoConfig
from robopo.cli.link_cut import CutResult, LinkCutArm
from robopo.cli.schema import DEPLOY, EVAL, EvalConfig
from robopo.cli.sim_cell import SimCell
from robopo.data.files import write_text
from robopo.deploy.checkpoint_spec import read_policy_spec
from robopo.deploy.config import DeployConfig, DeployReport
from robopo.deploy.runtime import deploy
from robopo.errors import ConfigError
from robopo.eval.provenance import collect_provenance
from robopo.eval.records import EvalReport
from robopo.eval.report import CurvePoint, Deployment, Film, Report
from robopo.eval.seeds import check_training_seed
from robopo.policies.io import read_config
from robopo.train.checkpoint import find_checkpoint
from robopo.train.logger import METRICS, read_metrics

CUT_AFTER_S = 0.45
"""Seconds of motion before the link is cut: the arm is on its way to the object."""


class Paths(NamedTuple):
    """Where each step writes."""

    root: Path
    demos: Path
    cloned: Path
    finetuned: Path
    arm: Path


class Evidence(NamedTuple):
    """What the report is made of."""

    before: EvalReport
    after: EvalReport
    env_steps: int
    curve: list[CurvePoint]
    films: list[Film]
    wall_s: float
    arm: DeployReport | None = None
    cut: CutResult | None = None
    """None before the arm has run, or when it came to rest before the link was cut."""


class InterruptedTrainingError(Exception):
    """Training was stopped by a signal; carries the exit code."""


def main(argv: Sequence[str]) -> int:
    """Run all steps; the last line is the result as JSON, then the path of the page."""
    console = Console(highlight=False, soft_wrap=True)
    shown = handle_cfg_flag("demo", argv, DEMO)
    if shown is not None:
        console.print(shown, markup=False)
        return 0
    config: DemoConfig = to_object(load_config("demo", argv, DEMO))
    check_training_seed(config.seed)
    root = Path(config.out) if config.out else Path("runs/demo") / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    if root.exists():
        raise ConfigError(f"{root} exists; choose another out=")
    sim = [f"sim={choices('demo', argv)['sim']}", *(text for text in argv if text.startswith("sim."))]
    paths = Paths(root, root / "demos", root / "bc", root / "dppo", root / "arm")
    demo = Demo(config, sim, paths, console)
    try:
        evidence = demo.learn()
    except InterruptedTrainingError as stopped:
        return int(stopped.args[0])
    demo.write(evidence)  # whatever happens to the arm, what was learned is on the page
    evidence = demo.drive(evidence)
    page = demo.write(evidence)
    console.print(json.dumps(summarise(config, evidence)), markup=False)
    console.print(str(page), markup=False)
    return 0


class Demo:
    """The steps, in order; ``commands`` are the lines that repeat them."""

    def __init__(self, config: DemoConfig, sim: list[str], paths: Paths, console: Console) -> None:
        self._config, self._sim, self._paths, self._console = config, sim, paths, console
        self._began = time.monotonic()
        self.commands: list[str] = []

    def learn(self) -> Evidence:
        """Steps 1 to 4: everything that is measured in the simulator."""
        config, paths = self._config, self._paths
        seed = f"seed={config.seed}"
        self._step(1, f"{config.demonstrations} imperfect demonstrations of {self._sim[0].removeprefix('sim=')}")
        self._collect(
            [
                *self._sim,
                seed,
                f"episodes={config.demonstrations}",
                f"imperfection={config.imperfection}",
                f"out={paths.demos}",
            ],
        )
        self._step(2, "behaviour cloning of a diffusion policy")
        self._train(
            [
                "algo=bc",
                *self._sim,
                seed,
                f"demos={paths.demos}",
                f"run_dir={paths.cloned}",
                f"algo.steps={config.cloning_steps}",
            ]
        )
        before = self._evaluate(paths.cloned)
        self._step(3, "fine-tuning by DPPO")
        self._train(
            [
                "algo=dppo",
                *self._sim,
                seed,
                f"checkpoint={paths.cloned}",
                f"run_dir={paths.finetuned}",
                f"loop.iterations={config.iterations}",
            ]
        )
        self._step(4, f"evaluation on {config.n} reserved episodes, and films")
        after = self._evaluate(paths.finetuned)
        films = self._films(paths.cloned, "before") + self._films(paths.finetuned, "after")
        log = read_metrics(paths.finetuned / METRICS)
        return Evidence(
            before=before,
            after=after,
            env_steps=int(log[-1]["env_steps"]),
            curve=evaluate.curve(paths.finetuned / METRICS),
            films=films,
            wall_s=time.monotonic() - self._began,
        )

    def drive(self, found: Evidence) -> Evidence:
        """Step 5: the policy on a simulated arm."""
        self._step(5, "a simulated arm behind the safety gate")
        arm, cut = self._arm()
        return found._replace(arm=arm, cut=cut, wall_s=time.monotonic() - self._began)

    def write(self, found: Evidence) -> Path:
        """report.json and report.html."""
        root = self._paths.root
        write_text(root / "report.json", json.dumps(summarise(self._config, found), indent=1) + "\n")
        return self.page(found).write_html(root / "report.html")

    def _step(self, number: int, what: str) -> None:
        self._console.print(f"[bold]{number}/5[/bold] {what}")

    def _collect(self, argv: list[str]) -> None:
        self.commands.append(shlex.join(["robopo", "collect", *argv]))
        collect.main(argv)

    def _train(self, argv: list[str]) -> None:
        self.commands.append(shlex.join(["robopo", "train", *argv]))
        code = train.main(argv)
        if code:
            raise InterruptedTrainingError(code)

    def _eval_config(self, run: Path) -> EvalConfig:
        argv = [*self._sim, f"checkpoint={run}", f"n={self._config.n}", f"videos={self._config.films}"]
        config: EvalConfig = to_object(load_config("eval", argv, EVAL))
        self.commands.append(shlex.join(["robopo", "eval", *argv]))
        return config

    def _evaluate(self, run: Path) -> EvalReport:
        config = self._eval_config(run)
        folder = find_checkpoint(run)
        report, _ = evaluate.evaluate_folder(config, evaluate.acting_policy(config, folder), folder)
        self._console.print(f"    success {report.success} on {report.n} episodes", markup=False)
        return report

    def _films(self, run: Path, label: str) -> list[Film]:
        folder = run / "eval" / find_checkpoint(run).name / "videos"
        films = sorted(folder.glob("*.mp4"))
        return [Film(label, path, f"{label} fine-tuning, episode seed {path.stem}") for path in films]

    def _arm(self) -> tuple[DeployReport, CutResult | None]:
        """Some episodes on the simulated arm, then one whose link is cut while the arm moves."""
        config, paths = self._config, self._paths
        argv = [
            f"checkpoint={paths.finetuned}",
            "arm=sim",
            f"episodes={config.deploy_episodes}",
            f"seed={config.seed}",
            f"out={paths.arm}",
        ]
        self.commands.append(shlex.join(["robopo", "deploy", *argv]))
        folder = find_checkpoint(paths.finetuned)
        settings = to_object(load_config("deploy", argv, DEPLOY))
        report = deploy_command.run_deployment(settings, folder, paths.arm)
        for line in deploy_command.describe(report):
            self._console.print(f"    {line}", markup=False)
        cut = cut_the_link(folder, paths.arm / "link-cut", seed=config.seed)
        self._console.print(f"    link cut {cut_sentence(cut)}", markup=False)
        return report, cut

    def page(self, found: Evidence) -> Report:
        """The report."""
        task, n = self._sim[0].removeprefix("sim="), found.before.n
        cloned, tuned = found.before.success.point, found.after.success.point
        folder = find_checkpoint(self._paths.finetuned)
        return Report(
            title=f"{task}: cloned, then fine-tuned by DPPO",
            summary=(
                f"A diffusion policy cloned from {self._config.demonstrations} imperfect demonstrations succeeds in "
                f"{cloned:.0%} of {n} unseen episodes; after {found.env_steps:,} simulated control steps of DPPO it "
                f"succeeds in {tuned:.1%} of the same episodes. The whole pipeline took {found.wall_s / 60:.1f} min."
            ),
            before=found.before,
            after=found.after,
            curve=found.curve,
            films=found.films,
            deployment=self._deployment(found.arm, found.cut) if found.arm else None,
            notes=(
                "The last checkpoint is reported, not the best one on the curve; the curve's episodes are other ones.",
                "Both policies act without exploration noise, on starts that training never sees.",
                "Everything is simulated. The safety gate is software in front of an arm; it replaces no red button.",
            ),
            config={"commands": self.commands, "policy": read_config(folder)},
            provenance=collect_provenance(seed=self._config.seed).to_json(),
        )

    def _deployment(self, arm: DeployReport, cut: CutResult | None) -> Deployment:
        events = [json.loads(line) for line in (self._paths.arm / "link-cut" / "events.jsonl").read_text().splitlines()]
        ended = f" The run ended early by {arm.stopped_by}." if arm.stopped_by else ""
        return Deployment(
            target_hz=1.0 / DeployConfig().gate.tick_s,
            measured_hz=1000.0 / arm.period_p50_ms if arm.period_p50_ms else 0.0,
            jitter_ms={"p99 (lateness)": arm.lateness.p99_ms, "longest": arm.lateness.max_ms},
            steps=arm.steps,
            interventions={f"motion ramped in or smoothed (of {arm.gate_ticks:,} ticks)": arm.gate_interventions},
            events=events,
            arm="simulated Franka, in real time",
            summary=(
                f"{arm.successes} of {arm.episodes} episodes succeeded on the simulated arm behind the gate.{ended} "
                f"Then the link was cut {cut_sentence(cut)} The events below are of that run."
            ),
        )


def cut_the_link(folder: Path, out: Path, *, seed: int) -> CutResult | None:
    """One episode whose link is cut while the arm moves; None when it was over before the cut."""
    cell = SimCell(read_policy_spec(folder), seed=seed)
    arm = LinkCutArm(cell.arm, after_s=CUT_AFTER_S)
    out.mkdir(parents=True, exist_ok=True)
    try:
        settings = DeployConfig(
            run_dir=out, estop_path=out / "estop.json", episode_steps=100, gate=cell.gate_config({}), seed=seed
        )
        deploy(
            settings,
            arm=arm,
            observe=cell.observe,
            resolver=cell.resolver,
            checkpoint=folder,
            reset=cell.reset,
        )
    finally:
        cell.close()
    return arm.result


def cut_sentence(cut: CutResult | None) -> str:
    """What happened to the arm, in words that follow "the link was cut"."""
    if cut is None:
        return f"not at all: the episode lasted less than {CUT_AFTER_S} s."
    began = f"in mid-motion, while the fastest joint moved at {cut.speed_rad_s:.2f} rad/s:"
    if cut.rest_s is None:
        return f"{began} the arm did NOT come to rest."
    return f"{began} arm at rest after {1000 * cut.rest_s:.0f} ms."


def summarise(config: DemoConfig, found: Evidence) -> dict[str, Any]:
    """The machine-readable result."""
    return {
        "seed": config.seed,
        "wall_s": round(found.wall_s, 1),
        "bc": {"n": found.before.n, "successes": found.before.successes},
        "finetuned": {"n": found.after.n, "successes": found.after.successes},
        "env_steps": found.env_steps,
        "deploy": found.arm
        and {
            "steps": found.arm.steps,
            "gate_interventions": found.arm.gate_interventions,
            "period_p99_ms": round(found.arm.period_p99_ms, 3),
        },
    }
