"""``robopo train``: clone demonstrations or fine-tune, from a configuration or from where a run stopped."""

from __future__ import annotations

import json
import logging
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

import torch
from omegaconf import DictConfig, OmegaConf
from rich.console import Console

from robopo.algos.bc import BCConfig
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.cli.configs import SavedRun, build, choices, handle_cfg_flag, load_config, load_saved, to_object
from robopo.cli.finetuning import Seeds, algorithm_choices, policy_gradient_stage
from robopo.cli.pipeline import FinetunablePolicy, cloning_stage, new_policy, scratch_policy, selection_evaluator
from robopo.cli.schema import TRAIN, TrainConfig
from robopo.data.demo import DemoData
from robopo.data.files import write_text
from robopo.data.load import load_demonstrations
from robopo.data.sampler import WindowDataset
from robopo.device import select_device
from robopo.errors import CheckpointError, ConfigError
from robopo.eval.provenance import collect_provenance
from robopo.eval.seeds import check_training_seed
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.gmm import GMMPolicy
from robopo.policies.io import load_policy
from robopo.train.checkpoint import Checkpoint, find_checkpoint, load_checkpoint
from robopo.train.logger import RunLogger
from robopo.train.loop import Evaluate, LoopConfig, TrainResult, train
from robopo.train.seeding import SeedTree
from robopo.train.stages import Stage
from sims.base import SimSpec, VecSim

log = logging.getLogger(__name__)

RUN_FILE = "run.json"
"""In the run folder: the chosen options and all values, which ``resume=`` reads."""


class Run(NamedTuple):
    """One invocation, read and checked."""

    config: TrainConfig
    folder: Path
    resume: Checkpoint | None
    saved: SavedRun


class Prepared(NamedTuple):
    """What the loop is handed."""

    stage: Stage
    evaluate: Evaluate
    loop: LoopConfig
    title: str


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
    watched: VecSim = build(config.sim, num_envs=min(config.evaluation.num_envs, config.evaluation.n))
    try:
        match config.algo:
            case BCConfig():
                yield _prepare_cloning(run, config.algo, sim, watched, seeds, device)
            case PolicyGradientConfig():
                yield _prepare_finetuning(run, config.algo, sim, watched, seeds, device)
            case _:
                raise ConfigError(f"robopo train can't run a {type(config.algo).__name__}")
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


def _prepare_cloning(
    run: Run, algo: BCConfig, sim: VecSim, watched: VecSim, seeds: SeedTree, device: torch.device
) -> Prepared:
    config = run.config
    data = _demonstrations(config, sim.spec)
    policy = new_policy(data, sim.spec, config.policy, device)
    cloning = cloning_stage(
        policy,
        data,
        algo,
        updates_per_iteration=config.updates_per_iteration,
        seeds=seeds,
        device=device,
        provenance={**_provenance(run), "demonstrations": data.fingerprint},
    )
    loop = replace(config.loop, iterations=-(-algo.steps // config.updates_per_iteration), eval_first=False)
    look = selection_evaluator(cloning.averaged, watched, config.evaluation.n, device, before=cloning.refresh)
    return Prepared(cloning.stage, look, loop, "bc")


def _prepare_finetuning(
    run: Run, algo: PolicyGradientConfig, sim: VecSim, watched: VecSim, seeds: SeedTree, device: torch.device
) -> Prepared:
    config = run.config
    policy, parent = _starting_policy(run, sim.spec, device)
    windows: WindowDataset | None = None
    if algo.demo_coef > 0.0:
        data = _demonstrations(config, sim.spec)
        windows = WindowDataset(data, obs_steps=policy.spec.obs_steps, horizon=policy.spec.horizon, device=device)
    stage, policy = policy_gradient_stage(
        policy,
        sim,
        algo,
        config.finetune,
        seeds=Seeds(seeds, device),
        provenance={**_provenance(run), "started_from": parent},
        demonstrations=windows,
        learn_observations=config.from_scratch,
    )
    look = selection_evaluator(policy, watched, config.evaluation.n, device)
    return Prepared(stage, look, config.loop, run.saved.choices.get("algo", "dppo"))


def _starting_policy(run: Run, sim: SimSpec, device: torch.device) -> tuple[FinetunablePolicy, str]:
    """The policy to improve; a resumed run has all of it in its own checkpoint."""
    config = run.config
    if run.resume is not None:
        return _finetunable(run.resume.folder, device), str(config.checkpoint or "scratch")
    if config.from_scratch:
        if config.checkpoint is not None:
            raise ConfigError(f"checkpoint={config.checkpoint} with from_scratch=true: choose one of the two")
        return scratch_policy(sim, config.policy, device), "scratch"
    if config.checkpoint is None:
        raise ConfigError(
            "this algo improves a policy: give checkpoint=<run or checkpoint folder>, or from_scratch=true with policy="
        )
    folder = find_checkpoint(Path(config.checkpoint))
    return _finetunable(folder, device), str(folder)


def _finetunable(folder: Path, device: torch.device) -> FinetunablePolicy:
    policy = load_policy(folder, device)
    if not isinstance(policy, ChunkPolicy | GaussianPolicy | GMMPolicy):
        raise ConfigError(f"{folder} holds a {type(policy).__name__}, which this algorithm can't improve")
    return policy


def _demonstrations(config: TrainConfig, sim: SimSpec) -> DemoData:
    if config.demos is None:
        raise ConfigError(
            "cloning (algo=bc, algo.demo_coef) needs demonstrations: give demos=<dataset folder, robomimic .hdf5 or "
            "DPPO .npz>; robopo collect writes a dataset"
        )
    proprioception = sim.observation["state"].shape[0] if "state" in sim.observation else None
    return load_demonstrations(Path(config.demos), control_hz=sim.control_hz, state_dim=proprioception)


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
    return {**facts, "choices": dict(run.saved.choices)}
