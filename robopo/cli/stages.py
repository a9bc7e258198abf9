"""From the configuration of ``robopo train`` to what the loop is handed."""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from robopo.algos.bc import BCConfig
from robopo.algos.cal_ql import CalQLConfig
from robopo.algos.dawr import DAWRConfig
from robopo.algos.drwr import DRWRConfig
from robopo.algos.ibrl import IBRLConfig
from robopo.algos.podpo import PODPOConfig
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.algos.rlpd import RLPDConfig
from robopo.cli.algo_schema import OffPolicySettings
from robopo.cli.finetuning import Seeds, policy_gradient_stage
from robopo.cli.off_policy import off_policy_stage, regression_stage
from robopo.cli.pipeline import (
    FinetunablePolicy,
    cloning_stage,
    fitted_normalizer,
    fresh_policy,
    new_policy,
    policy_spec,
    scratch_policy,
    selection_evaluator,
)
from robopo.cli.policy_schema import TanhGaussianSettings
from robopo.cli.schema import TrainConfig
from robopo.data.demo import DemoData
from robopo.data.load import load_demonstrations
from robopo.data.sampler import WindowDataset
from robopo.errors import ConfigError
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.gmm import GMMPolicy
from robopo.policies.io import SavedPolicy, load_policy
from robopo.policies.tanh_gaussian import TanhGaussianPolicy
from robopo.train.checkpoint import find_checkpoint
from robopo.train.loop import Evaluate, LoopConfig
from robopo.train.stages import Stage
from sims.base import SimSpec, VecSim


class Workshop(NamedTuple):
    """What a stage is built from besides its configuration."""

    sim: VecSim
    watched: VecSim
    """For evaluations during training."""
    seeds: Seeds
    provenance: Mapping[str, Any]
    resume: Path | None
    """Checkpoint folder of a run that goes on: the policy is there."""
    choices: Mapping[str, str]


class Prepared(NamedTuple):
    """What the loop is handed."""

    stage: Stage
    evaluate: Evaluate
    loop: LoopConfig
    title: str


def stage_of(config: TrainConfig, shop: Workshop) -> Prepared:
    """Data, networks, algorithm and stage of ``config``."""
    match config.algo:
        case BCConfig() as algo:
            return _cloning(config, algo, shop)
        case PolicyGradientConfig() as algo:
            return _policy_gradient(config, algo, shop)
        case DRWRConfig() | DAWRConfig() | PODPOConfig() as algo:
            policy, parent = _starting_policy(config, shop)
            stage, acting = regression_stage(
                policy, shop.sim, algo, config.finetune, seeds=shop.seeds, provenance=_from(shop, parent)
            )
            return _prepared(config, shop, stage, acting)
        case OffPolicySettings() as algo:
            return _off_policy(config, algo, shop)
        case unknown:
            raise ConfigError(f"robopo train can't run a {type(unknown).__name__}")


def _cloning(config: TrainConfig, algo: BCConfig, shop: Workshop) -> Prepared:
    sim = shop.sim.spec
    data = _demonstrations(config, sim, policy_spec(sim, config.policy).images)
    policy = new_policy(data, sim, config.policy, shop.seeds.device)
    cloning = cloning_stage(
        policy,
        data,
        algo,
        updates_per_iteration=config.updates_per_iteration,
        seeds=shop.seeds.tree,
        device=shop.seeds.device,
        provenance={**shop.provenance, "demonstrations": data.fingerprint},
    )
    loop = replace(config.loop, iterations=-(-algo.steps // config.updates_per_iteration), eval_first=False)
    n, device = config.evaluation.n, shop.seeds.device
    look = selection_evaluator(cloning.averaged, shop.watched, n, device, before=cloning.refresh)
    return Prepared(cloning.stage, look, loop, "bc")


def _policy_gradient(config: TrainConfig, algo: PolicyGradientConfig, shop: Workshop) -> Prepared:
    policy, parent = _starting_policy(config, shop)
    windows: WindowDataset | None = None
    if algo.demo_coef > 0.0:
        spec, device = policy.spec, shop.seeds.device
        data, keys = _demonstrations(config, shop.sim.spec, spec.images), [*spec.obs, *spec.images]
        windows = WindowDataset(data, obs_steps=spec.obs_steps, horizon=spec.horizon, device=device, keys=keys)
    stage, policy = policy_gradient_stage(
        policy,
        shop.sim,
        algo,
        config.finetune,
        seeds=shop.seeds,
        provenance=_from(shop, parent),
        demonstrations=windows,
        learn_observations=config.from_scratch,
    )
    return _prepared(config, shop, stage, policy)


def _off_policy(config: TrainConfig, algo: OffPolicySettings, shop: Workshop) -> Prepared:
    demos = None if config.demos is None else _demonstrations(config, shop.sim.spec)
    cloned: SavedPolicy | None = None
    match algo.method:
        case RLPDConfig() | CalQLConfig():
            policy, parent = _squashed_policy(config, shop), "scratch"
        case IBRLConfig():
            cloned, parent = _starting_policy(config, shop, resumed=False)
            policy = _beside(cloned, config, shop)
        case _:
            policy, parent = _starting_policy(config, shop)
    stage, acting = off_policy_stage(
        policy,
        shop.sim,
        algo,
        config.finetune,
        seeds=shop.seeds,
        provenance=_from(shop, parent),
        demos=demos,
        cloned=cloned,
    )
    return _prepared(config, shop, stage, acting)


def _prepared(config: TrainConfig, shop: Workshop, stage: Stage, acting: Any) -> Prepared:
    look = selection_evaluator(acting, shop.watched, config.evaluation.n, shop.seeds.device)
    return Prepared(stage, look, config.loop, shop.choices.get("algo", "train"))


def _from(shop: Workshop, parent: str) -> dict[str, Any]:
    return {**shop.provenance, "started_from": parent}


def _starting_policy(config: TrainConfig, shop: Workshop, *, resumed: bool = True) -> tuple[FinetunablePolicy, str]:
    """The policy to improve; a resumed run has all of it in its own checkpoint."""
    device = shop.seeds.device
    if shop.resume is not None and resumed:
        return _finetunable(shop.resume, shop), str(config.checkpoint or "scratch")
    if config.from_scratch:
        if config.checkpoint is not None:
            raise ConfigError(f"checkpoint={config.checkpoint} with from_scratch=true: choose one of the two")
        return scratch_policy(shop.sim.spec, config.policy, device), "scratch"
    if config.checkpoint is None:
        raise ConfigError(
            "this algo improves a policy: give checkpoint=<run or checkpoint folder>, or from_scratch=true with policy="
        )
    folder = find_checkpoint(Path(config.checkpoint))
    return _finetunable(folder, shop), str(folder)


def _finetunable(folder: Path, shop: Workshop) -> FinetunablePolicy:
    policy = load_policy(folder, shop.seeds.device)
    if not isinstance(policy, ChunkPolicy | GaussianPolicy | GMMPolicy):
        raise ConfigError(f"{folder} holds a {type(policy).__name__}, which this algorithm can't improve")
    return policy


def _squashed_policy(config: TrainConfig, shop: Workshop) -> SavedPolicy:
    """The actor of RLPD and Cal-QL: fresh, with the demonstrations' statistics."""
    if shop.resume is not None:
        return load_policy(shop.resume, shop.seeds.device)
    settings, sim = config.policy, shop.sim.spec
    if not isinstance(settings, TanhGaussianSettings):
        raise ConfigError(
            f"this algo trains policy=tanh_gaussian, not a {type(settings).__name__}; add policy=tanh_gaussian"
        )
    spec = policy_spec(sim, settings)
    normalizer = fitted_normalizer(_demonstrations(config, sim), sim, spec)
    return TanhGaussianPolicy(spec, normalizer, settings.net).to(shop.seeds.device)


def _beside(cloned: FinetunablePolicy, config: TrainConfig, shop: Workshop) -> SavedPolicy:
    """The policy that IBRL trains: a copy of a Gaussian clone, else the fresh one of ``policy=``."""
    if shop.resume is not None:
        return load_policy(shop.resume, shop.seeds.device)
    if isinstance(cloned, GaussianPolicy):
        return copy.deepcopy(cloned)
    spec = policy_spec(shop.sim.spec, config.policy)
    return fresh_policy(spec, config.policy, copy.deepcopy(cloned.normalizer)).to(shop.seeds.device)


def _demonstrations(config: TrainConfig, sim: SimSpec, images: Collection[str] = ()) -> DemoData:
    if config.demos is None:
        raise ConfigError(
            "this algo needs demonstrations: give demos=<dataset folder, robomimic .hdf5 or DPPO .npz>; "
            "robopo collect writes a dataset"
        )
    proprioception = sim.observation["state"].shape[0] if "state" in sim.observation else None
    return load_demonstrations(Path(config.demos), control_hz=sim.control_hz, state_dim=proprioception, images=images)
