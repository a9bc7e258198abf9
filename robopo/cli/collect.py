"""``robopo collect``: demonstrations of a scripted expert as a LeRobotDataset v3."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from robopo.cli.configs import build, handle_cfg_flag, load_config, to_object
from robopo.cli.schema import COLLECT, CollectConfig
from robopo.data.demo import Columns, DemoData
from robopo.data.lerobot import write_lerobot
from robopo.errors import ConfigError, DataError
from robopo.eval.seeds import check_training_seed
from robopo.train.seeding import SeedTree
from sims.base import SimSpec, VecSim
from sims.demonstrations import Demonstrations, collect_demonstrations
from sims.experts import ExpertConfig, make_expert


def main(argv: Sequence[str]) -> int:
    """Record, write, and say how often the expert succeeded."""
    console = Console(highlight=False, soft_wrap=True)
    shown = handle_cfg_flag("collect", argv, COLLECT)
    if shown is not None:
        console.print(shown, markup=False)
        return 0
    config: CollectConfig = to_object(load_config("collect", argv, COLLECT))
    sim: VecSim = build(config.sim)
    try:
        out = Path(config.out or f"data/{sim.spec.name}")
        if out.exists() and not config.overwrite:
            raise DataError(f"{out} exists; choose another out=, or overwrite=true")
        with Progress(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task("demonstrations", total=config.episodes)
            found = record(sim, config, progress=lambda done: bar.update(task, completed=done))
        write_lerobot(out, to_demo_data(found, sim.spec), robot_type="sim_franka", overwrite=config.overwrite)
    finally:
        sim.close()
    rate = found.attempted_successes / found.attempted
    console.print(
        f"{config.episodes} demonstrations ({len(found.action)} frames) in {out}; the expert succeeded in "
        f"{found.attempted_successes} of {found.attempted} episodes ({rate:.1%})"
    )
    return 0


def record(sim: VecSim, config: CollectConfig, *, progress: Callable[[int], None] | None = None) -> Demonstrations:
    """Run the expert of the simulator's task until ``config.episodes`` demonstrations are kept."""
    seeds = SeedTree(check_training_seed(config.seed))
    try:
        expert = make_expert(
            sim.spec.name, sim.num_envs, ExpertConfig.imperfect(config.imperfection), seed=seeds.int("expert") % 10**9
        )
        return collect_demonstrations(
            sim,
            expert,
            config.episodes,
            seed=seeds.int("demonstrations") % 10**9,
            keep_failures=config.keep_failures,
            progress=progress,
        )
    except ValueError as error:
        raise ConfigError(str(error)) from error
    except RuntimeError as error:
        raise DataError(str(error)) from error


def to_demo_data(found: Demonstrations, sim: SimSpec) -> DemoData:
    """Demonstrations with the simulator's names and units."""
    features = {name: Columns(feature.names, feature.units) for name, feature in sim.observation.items()}
    return DemoData(
        obs=found.obs,
        action=found.action,
        episode_index=found.episode_index,
        control_hz=sim.control_hz,
        action_mode=sim.action_mode,
        task=sim.name,
        instruction=sim.instruction,
        features={**features, "action": Columns(sim.action.names, sim.action.units)},
        success=np.asarray(found.success),
    )
