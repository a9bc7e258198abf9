"""``robopo collect``: episodes of a scripted expert, or of a checkpoint's policy, as a dataset."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from rich.console import Console
from rich.progress import Progress

from robopo.algos.best_of_n_io import load_acting
from robopo.cli.configs import build, handle_cfg_flag, load_config, to_object
from robopo.cli.schema import COLLECT, CollectConfig
from robopo.data.demo import Columns, DemoData
from robopo.data.lerobot import write_lerobot
from robopo.data.ogbench import write_ogbench
from robopo.errors import ConfigError, DataError
from robopo.eval.seeds import check_training_seed
from robopo.rollout.record import Recording, record_policy
from robopo.train.checkpoint import find_checkpoint
from robopo.train.seeding import SeedTree
from sims.base import SimSpec, VecSim
from sims.demonstrations import Demonstrations, collect_demonstrations
from sims.experts import ExpertConfig, expert_for
from sims.gymnasium_vec import ACTION_MODE


def main(argv: Sequence[str]) -> int:
    """Record, write, and say what was kept of how much."""
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
            task = bar.add_task("episodes", total=config.episodes)
            collect = collect_expert if config.checkpoint is None else collect_policy
            said = collect(sim, config, out, lambda done: bar.update(task, completed=done))
    finally:
        sim.close()
    console.print(said, markup=False)
    return 0


def collect_expert(sim: VecSim, config: CollectConfig, out: Path, progress: Callable[[int], None]) -> str:
    """Demonstrations of the task's expert as a LeRobotDataset; the closing message."""
    if out.suffix == ".npz":
        raise ConfigError(f"out={out}: transitions with rewards are written of a checkpoint= only; name a folder")
    if sim.spec.action_mode == ACTION_MODE:
        raise ConfigError(
            f"{sim.spec.name} has no scripted expert: give checkpoint=<run or checkpoint folder>, for example one that "
            "robopo train from_scratch=true has made"
        )
    found = record(sim, config, progress=progress)
    robot = f"sim_{sim.spec.robot or sim.spec.engine}"
    write_lerobot(out, to_demo_data(found, sim.spec), robot_type=robot, overwrite=config.overwrite)
    rate = found.attempted_successes / found.attempted
    return (
        f"kept {config.episodes} demonstrations ({len(found.action)} frames) in {out}; attempted {found.attempted} "
        f"episodes, of which the expert succeeded in {found.attempted_successes} ({rate:.1%})"
    )


def collect_policy(sim: VecSim, config: CollectConfig, out: Path, progress: Callable[[int], None]) -> str:
    """Episodes of the checkpoint's policy as a LeRobotDataset or as transitions; the closing message."""
    seeds = SeedTree(check_training_seed(config.seed))
    policy = load_acting(find_checkpoint(Path(config.checkpoint or "")), "cpu")
    found = record_policy(
        policy,
        sim,
        config.episodes,
        seed=seeds.int("policy") % 10**9,
        deterministic=config.deterministic,
        keep_failures=config.keep_failures or not sim.spec.has_success,
        progress=progress,
    )
    if out.suffix == ".npz":
        digest = write_transitions(out, found, overwrite=config.overwrite)
    else:
        data = to_demo_data(found, sim.spec)
        digest = data.fingerprint
        write_lerobot(out, data, robot_type=sim.spec.engine, overwrite=config.overwrite)
    returns = found.returns
    succeeded = f"; {int(found.success.sum())} succeeded" if sim.spec.has_success else ""
    return (
        f"kept {config.episodes} episodes ({len(found.action)} frames) in {out}; attempted {found.attempted}{succeeded}"
        f"; return {returns.mean():.1f} ± {returns.std():.1f} ({returns.min():.1f} to {returns.max():.1f})\n"
        f"sha256 {digest}"
    )


def write_transitions(out: Path, found: Recording, *, overwrite: bool) -> str:
    """An .npz in OGBench's layout; the fingerprint. The observation entries stand side by side, in order of names."""
    names = sorted(found.obs)
    pictures = [name for name in names if found.obs[name].ndim > 2]
    if pictures:
        raise ConfigError(f"out={out}: an .npz holds no pictures ({', '.join(pictures)}); name a folder instead")
    return write_ogbench(
        out,
        obs=np.concatenate([found.obs[name] for name in names], axis=1),
        final_obs=np.concatenate([found.final_obs[name] for name in names], axis=1),
        action=found.action,
        reward=found.reward,
        episode_index=found.episode_index,
        terminated=found.terminated,
        overwrite=overwrite,
    )


def record(sim: VecSim, config: CollectConfig, *, progress: Callable[[int], None] | None = None) -> Demonstrations:
    """Run the expert of the simulator's task until ``config.episodes`` demonstrations are kept."""
    seeds = SeedTree(check_training_seed(config.seed))
    try:
        habits = ExpertConfig.imperfect(config.imperfection)
        expert = expert_for(sim.spec, sim.num_envs, habits, seed=seeds.int("expert") % 10**9)
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


def to_demo_data(found: Demonstrations | Recording, sim: SimSpec) -> DemoData:
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
        success=np.asarray(found.success) if sim.has_success else None,
    )
