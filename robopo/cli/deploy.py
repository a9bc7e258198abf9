"""``robopo deploy``: a checkpoint on an arm, behind the gate, at its control rate."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from rich.console import Console

from hardware.types import HardwareError
from robopo.cli.configs import build, handle_cfg_flag, load_config, to_object
from robopo.cli.evaluate import find_policy
from robopo.cli.schema import DEPLOY, DeployCommandConfig
from robopo.data.lerobot import write_lerobot
from robopo.deploy.checkpoint_spec import DeployedPolicy, read_policy_spec
from robopo.deploy.config import DeployConfig, DeployReport
from robopo.deploy.recorder import RecordedEpisode, Recorder, demo_data
from robopo.deploy.runtime import deploy
from robopo.errors import ConfigError, RobopoError


def main(argv: Sequence[str]) -> int:
    """Run the episodes; returns 0, or 1 after a fault, an emergency stop, or a hold that the run didn't ask for."""
    console = Console(highlight=False, soft_wrap=True)
    shown = handle_cfg_flag("deploy", argv, DEPLOY)
    if shown is not None:
        console.print(shown, markup=False)
        return 0
    config: DeployCommandConfig = to_object(load_config("deploy", argv, DEPLOY))
    if config.checkpoint is None:
        raise ConfigError("robopo deploy needs checkpoint=<run or checkpoint folder>")
    out = Path(config.out) if config.out else Path("runs/deploy") / f"{datetime.now().astimezone():%Y%m%d-%H%M%S}"
    try:
        report = run_deployment(config, find_policy(Path(config.checkpoint)), out)
    except HardwareError as error:
        raise RobopoError(f"{error} (events: {out / 'events.jsonl'})") from error
    for line in describe(report):
        console.print(line, markup=False)
    recorded = f"recorded in {out / 'dataset'}" if (out / "dataset").is_dir() else "nothing was recorded"
    console.print(f"{recorded}; events in {report.events_path}", markup=False)
    return int(not report.clean)


def run_deployment(config: DeployCommandConfig, folder: Path, out: Path) -> DeployReport:
    """Build the cell, deploy, and write what was recorded to ``out/dataset``."""
    policy = read_policy_spec(folder)
    if (out / "dataset").exists():
        raise ConfigError(f"{out} already holds a recording; choose another out=")
    out.mkdir(parents=True, exist_ok=True)
    cell: Any = build(config.arm, policy=policy, seed=config.seed)
    try:
        settings = DeployConfig(
            run_dir=out,
            episodes=config.episodes,
            episode_steps=max(1, round(config.seconds * policy.control_hz)),
            gate=cell.gate_config(dict(config.gate)),
            seed=config.seed,
            # Beginning another episode after a hold is an operator's decision wherever somebody could be hurt.
            continue_after_hold=bool(getattr(cell, "simulated", False)),
        )
        return deploy(
            settings,
            arm=cell.arm,
            observe=cell.observe,
            resolver=cell.resolver,
            checkpoint=folder,
            recorder=Recorder(dataset_writer(out / "dataset", policy)),
            success=cell.success,
            reset=cell.reset,
        )
    finally:
        cell.close()


def dataset_writer(folder: Path, policy: DeployedPolicy) -> Any:
    """What the recorder calls at the end: episodes to a LeRobotDataset."""

    def write(episodes: Sequence[RecordedEpisode]) -> None:
        write_lerobot(folder, demo_data(episodes, control_hz=policy.control_hz, task=policy.task))

    return write


def describe(report: DeployReport) -> list[str]:
    """What happened, for a person."""
    rate_hz = 1000.0 / report.period_p50_ms if report.period_p50_ms else 0.0
    period = f"median period {report.period_p50_ms:.2f} ms, p99 {report.period_p99_ms:.2f} ms"
    priority = "on" if report.realtime else "off"
    inference = f"inference p50 {report.inference_p50_ms:.1f} ms, p99 {report.inference_p99_ms:.1f} ms"
    stops = f"{report.holds} holds, {report.faults} faults, {report.estops} emergency stops"
    changed = f"{report.gate_interventions} of {report.gate_ticks} ticks changed"
    lines = [
        f"{report.successes} of {report.episodes} episodes succeeded, {report.steps} control steps",
        f"control loop {rate_hz:.1f} Hz ({period}), late by p99 {report.lateness.p99_ms:.2f} ms, realtime {priority}",
        f"{inference}; from observation to chunk p99 {report.delay.p99_ms:.1f} ms",
        f"gate: {changed}, {report.rejected_chunks} chunks rejected, {stops}",
    ]
    if report.stopped_by:
        lines.append(f"ended early by {report.stopped_by}")
    return lines
