"""``robopo eval``: the numbers of a checkpoint, built from its folder alone, with videos and a report page."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import Progress

from robopo.algos.best_of_n_io import load_acting
from robopo.cli.configs import build_for_evaluation, handle_cfg_flag, load_config, to_object
from robopo.cli.schema import EVAL, EvalConfig
from robopo.device import select_device
from robopo.errors import ConfigError, DataError
from robopo.eval.evaluate import evaluate
from robopo.eval.provenance import collect_provenance
from robopo.eval.records import EvalReport
from robopo.eval.report import CurvePoint, Film, Report
from robopo.eval.robustness import robustness
from robopo.eval.robustness_plots import plot_parameters, robustness_html
from robopo.eval.seeds import evaluation_seeds
from robopo.eval.video import annotate, record_episodes, write_mp4
from robopo.policies.base import Policy, PolicySpec
from robopo.policies.build import with_num_steps
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.io import read_config
from robopo.policies.zero_noise import ZeroNoise
from robopo.train.checkpoint import find_checkpoint
from robopo.train.logger import METRICS, read_metrics
from sims.base import VecSim
from sims.gymnasium_vec import ACTION_MODE, GymnasiumVec
from sims.mujoco_vec import MujocoVec

log = logging.getLogger(__name__)


def main(argv: Sequence[str]) -> int:
    """Evaluate, write the report folder, print the rate and where the report is."""
    console = Console(highlight=False, soft_wrap=True)
    shown = handle_cfg_flag("eval", argv, EVAL)
    if shown is not None:
        console.print(shown, markup=False)
        return 0
    config: EvalConfig = to_object(load_config("eval", argv, EVAL))
    if config.checkpoint is None:
        raise ConfigError("robopo eval needs checkpoint=<run or checkpoint folder>")
    torch.set_num_threads(config.torch_threads)
    folder = find_policy(Path(config.checkpoint))
    policy = acting_policy(config, folder)
    report, out = evaluate_folder(config, policy, folder)
    console.print(f"{report.headline} on {report.n} episodes of {policy.spec.task}", markup=False)
    console.print(f"report: {out / 'report.html'}", markup=False)
    return 0


def find_policy(path: Path) -> Path:
    """The policy folder that ``path`` means: a run's newest checkpoint, one checkpoint, or a bare policy folder."""
    if (path / "config.json").is_file() and not (path / "manifest.json").exists():
        return path
    return find_checkpoint(path)


def acting_policy(config: EvalConfig, folder: Path) -> Policy:
    """What the folder acts with, under the sampler that ``config`` asks for."""
    policy = load_acting(folder, select_device(config.device))
    if config.num_steps is None and not config.zero_noise:
        return policy
    if not isinstance(policy, ChunkPolicy):
        raise ConfigError(
            f"num_steps and zero_noise are of denoising policies, and {folder} acts with a {type(policy).__name__}"
        )
    if config.num_steps is not None:
        policy = with_num_steps(policy, config.num_steps)
    return ZeroNoise(policy) if config.zero_noise else policy


def evaluate_folder(config: EvalConfig, policy: Policy, folder: Path) -> tuple[EvalReport, Path]:
    """Episodes, films and files; returns the result and its folder."""
    run_dir = folder.resolve().parents[1] if folder.parent.name == "checkpoints" else folder
    out = Path(config.out) if config.out else run_dir / "eval" / folder.name
    device = select_device(config.device)
    sim = make_sim(config, policy, folder, min(config.num_envs, config.n))
    try:
        seeds = evaluation_seeds(config.n, config.purpose)
        options: dict[str, Any] = {
            "noise_seed": config.noise_seed,
            "deterministic": config.deterministic,
            "device": device,
        }
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("episodes", total=config.n)
            report = evaluate(
                policy, sim, seeds=seeds, progress=lambda done: bar.update(task, completed=done), **options
            )
    finally:
        sim.close()
    films = film(config, policy, seeds[: config.videos], (folder, out / "videos"), options) if config.videos else []
    report.write_json(out / "report.json")
    report.write_csv(out / "episodes.csv")
    where = ""
    if varied := report.rows[0].parameters:
        settings = {name: [row.parameters[name] for row in report.rows] for name in varied}
        returns, success = [row.return_ for row in report.rows], [row.success for row in report.rows]
        found = robustness(settings, returns, success, has_success=report.has_success)
        found.write_json(out / "robustness.json")
        where = robustness_html(found, plot_parameters(found, out / "robustness"))
    page = Report(
        title=f"{policy.spec.task}: {folder.name}",
        after=report,
        curve=curve(run_dir / METRICS),
        films=films,
        robustness=where,
        config=read_config(folder),
        provenance=collect_provenance(seed=config.noise_seed).to_json(),
    )
    page.write_html(out / "report.html")
    return report, out


def make_sim(config: EvalConfig, policy: Policy, folder: Path, num_envs: int) -> VecSim:
    """The simulator of ``sim=``, or the one that the policy in ``folder`` was trained in."""
    if config.sim is not None:
        return build_for_evaluation(config.sim, num_envs)
    trained_in = read_config(folder).get("provenance", {}).get("simulator")
    if trained_in is not None:
        if not str(trained_in.get("_target_", "")).startswith("sims."):  # a policy from elsewhere must not run code
            raise ConfigError(
                f"{folder} names the simulator {trained_in.get('_target_')!r}, not one of ours: give sim=…"
            )
        return build_for_evaluation(trained_in, num_envs)
    try:
        if policy.spec.action_mode == ACTION_MODE:
            return GymnasiumVec(policy.spec.task, num_envs)
        return MujocoVec(policy.spec.task, num_envs, action_mode=policy.spec.action_mode, **pictures(policy.spec))
    except (ValueError, OSError) as error:
        raise ConfigError(
            f"the checkpoint's task {policy.spec.task!r} can't be built ({error}); choose one: sim=…"
        ) from error


def pictures(spec: PolicySpec) -> dict[str, Any]:
    """The simulator's settings for the pictures that a policy was trained on; none for one that sees numbers alone."""
    if not spec.images:
        return {}
    cameras = tuple(name.removeprefix("image_") for name in spec.images)
    return {"cameras": cameras, "image_size": next(iter(spec.images.values()))[0]}


def film(
    config: EvalConfig, policy: Policy, seeds: Sequence[int], folders: tuple[Path, Path], options: dict[str, Any]
) -> list[Film]:
    """Films of the first episodes; none, and a warning, where nothing can be rendered.

    folders: the policy's, and the films'.
    """
    source, out = folders
    sim = make_sim(config, policy, source, min(len(seeds), 4))
    try:
        clips = record_episodes(policy, sim, seeds, stride=2, **options)
    except (RuntimeError, ImportError) as error:
        log.warning("no videos: %s", error)
        return []
    finally:
        sim.close()
    fps = policy.spec.control_hz / 2
    return [
        Film("episode", write_mp4(out / f"{clip.row.seed}.mp4", annotate(clip), fps=fps), f"seed {clip.row.seed}")
        for clip in clips
    ]


def curve(metrics: Path) -> list[CurvePoint]:
    """Evaluations during training, from the run's log; empty where there is none, or the simulator knows no success."""
    if not metrics.is_file():
        return []
    rows = [row for row in read_metrics(metrics) if row.get("eval/n")]
    if rows and all("eval/successes" not in row and "eval/return" in row for row in rows):
        return []
    try:
        return [
            CurvePoint(int(r.get("env_steps", 0)), r.get("elapsed_s", 0.0), int(r["eval/successes"]), int(r["eval/n"]))
            for r in rows
        ]
    except (KeyError, TypeError, ValueError) as error:
        raise DataError(f"{metrics} is not a robopo log ({error})") from error
