"""``robopo train``: clone demonstrations or fine-tune, from a configuration or from where a run stopped."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from robopo.algos.bc import BCConfig
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.cli.configs import (
    SavedRun,
    build,
    build_for_evaluation,
    choices,
    handle_cfg_flag,
    load_config,
    load_saved,
    to_object,
)
from robopo.cli.finetuning import Seeds, algorithm_choices
from robopo.cli.schema import TRAIN, TrainConfig
from robopo.cli.stages import Prepared, Workshop, stage_of
from robopo.data.files import write_text
from robopo.device import select_device
from robopo.errors import CheckpointError, ConfigError
from robopo.eval.provenance import collect_provenance
from robopo.eval.seeds import check_training_seed
from robopo.train.checkpoint import Checkpoint, find_checkpoint, load_checkpoint
from robopo.train.logger import RunLogger
from robopo.train.loop import TrainResult, train
from robopo.train.seeding import SeedTree
from sims.base import VecSim

log = logging.getLogger(__name__)

RUN_FILE = "run.json"
"""In the run folder: the chosen options and all values, which ``resume=`` reads."""


class Run(NamedTuple):
    """One invocation, read and checked."""

    config: TrainConfig
    folder: Path
    resume: Checkpoint | None
    saved: SavedRun


def main(argv: Sequence[str]) -> int:
    """Train and return 0, or 130 / 143 after SIGINT / SIGTERM."""
    shown = handle_cfg_flag("train", argv, TRAIN)
    console = Console(stderr=False)
    if shown is not None:
        console.print(shown, markup=False, highlight=False, soft_wrap=True)
        return 0
    run = read_run(argv)
    result = run_training(run)
    console.print(f"{result.iterations} iterations, checkpoint {result.checkpoint}", highlight=False, soft_wrap=True)
    if result.stopped_by is not None:
        console.print(f"stopped; continue with: robopo train resume={run.folder}", highlight=False, soft_wrap=True)
    return result.exit_code


def read_run(argv: Sequence[str]) -> Run:
    """Compose the configuration of a new run, or of the one that ``resume=`` names."""
    source = next((text.partition("=")[2] for text in argv if text.startswith("resume=")), "")
    if source and source != "null":
        checkpoint = load_checkpoint(find_checkpoint(Path(source)))
        folder = checkpoint.folder.parents[1]
        saved = read_saved(folder)
        rest = [text for text in argv if not text.startswith("resume=")]
        node = saved_node(saved, rest)
        return Run(_checked(node, rest), folder, checkpoint, SavedRun(saved.choices, _plain(node)))
    node = load_config("train", argv, TRAIN)
    saved = SavedRun(choices("train", argv), _plain(node))
    config = _checked(node, argv)
    name = f"{datetime.now().astimezone():%Y%m%d-%H%M%S}-{saved.choices['sim']}-{saved.choices['algo']}"
    folder = Path(config.run_dir) if config.run_dir else Path("runs/train") / name
    if (folder / "checkpoints").exists():
        raise ConfigError(f"{folder} already holds a run: continue it with resume={folder}, or choose another run_dir")
    return Run(config, folder, None, saved)


def run_training(run: Run) -> TrainResult:
    """Build everything, then loop."""
    with prepare(run) as prepared:
        run.folder.mkdir(parents=True, exist_ok=True)
        kept = {"choices": run.saved.choices, "config": run.saved.values}
        write_text(run.folder / RUN_FILE, json.dumps(kept, indent=1))
        logger = RunLogger(run.folder, run.config.logger, resume_step=run.resume.step if run.resume else None)
        try:
            return train(
                prepared.stage,
                prepared.loop,
                run_dir=run.folder,
                logger=logger,
                evaluate=prepared.evaluate,
                resume=run.resume,
                title=prepared.title,
            )
        finally:
            logger.close()


@contextmanager
def prepare(run: Run) -> Generator[Prepared]:
    """Simulators, data, networks and algorithm of ``run``; the simulators are closed at the end."""
    config = run.config
    torch.set_num_threads(config.torch_threads)
    device = select_device(config.device)
    seeds = SeedTree(config.seed)
    seeds.seed_globals()
    sim: VecSim = build(config.sim, seed=seeds.int("sim") % 10**9)
    watched: VecSim = build_for_evaluation(config.sim, min(config.evaluation.num_envs, config.evaluation.n))
    try:
        resume = None if run.resume is None else run.resume.folder
        yield stage_of(
            config, Workshop(sim, watched, Seeds(seeds, device), _provenance(run), resume, run.saved.choices)
        )
    finally:
        sim.close()
        watched.close()


def saved_node(saved: SavedRun, overrides: Sequence[str]) -> DictConfig:
    """The configuration that a run was started with, and a few changes."""
    return load_saved("train", saved, overrides, TRAIN)


def read_saved(folder: Path) -> SavedRun:
    """What the run in ``folder`` was started with."""
    path = folder / RUN_FILE
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        return SavedRun(tree["choices"], tree["config"])
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(f"{path} can't be read ({error}); only folders written by robopo train resume") from error


def _checked(node: DictConfig, overrides: Sequence[str]) -> TrainConfig:
    config: TrainConfig = to_object(node)
    check_training_seed(config.seed)
    if isinstance(config.algo, PolicyGradientConfig):
        algorithm_choices(config.algo)  # a mistake in a choice shows before anything is built
    if isinstance(config.algo, BCConfig) and any(text.startswith("loop.iterations=") for text in overrides):
        raise ConfigError("algo=bc trains for algo.steps gradient steps: set algo.steps instead of loop.iterations")
    return config


def _plain(node: DictConfig) -> dict[str, Any]:
    """JSON values; enums by name."""
    tree: Any = OmegaConf.to_container(node, enum_to_str=True)
    return tree


def _provenance(run: Run) -> dict[str, Any]:
    facts = collect_provenance(seed=run.config.seed).to_json()
    return {**facts, "choices": dict(run.saved.choices), "simulator": run.saved.values["sim"]}
