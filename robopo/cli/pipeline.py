"""Policies from configurations, and the cloning stage; what the other commands share with it."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robopo.algos.bc import BC, BCConfig
from robopo.cli.configs import build
from robopo.cli.policy_schema import (
    ChunkPolicySettings,
    DirectKind,
    OwnPolicySettings,
    PolicySettings,
    TanhGaussianSettings,
)
from robopo.data.demo import DemoData
from robopo.data.sampler import WindowDataset, frame_tensors
from robopo.errors import ConfigError, did_you_mean
from robopo.eval.evaluate import evaluate
from robopo.eval.seeds import SeedPurpose, evaluation_seeds
from robopo.policies.base import Policy, PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.gaussian_build import build_gaussian, build_gmm
from robopo.policies.gmm import GMMPolicy
from robopo.policies.io import save_policy
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.running_stats import scratch_normalizer
from robopo.train.loop import Evaluate
from robopo.train.seeding import SeedTree
from robopo.train.stages import CloningStage
from sims.base import Feature, SimSpec, VecSim

type FinetunablePolicy = ChunkPolicy | GaussianPolicy | GMMPolicy
"""What cloning makes and the policy-gradient family improves."""


def policy_spec(sim: SimSpec, config: PolicySettings) -> PolicySpec:
    """Names and sizes from the simulator, chunk sizes and the choice of entries from the configuration."""
    seen = chosen_entries(sim, getattr(config, "obs", None), pictures=getattr(config, "vision", None) is not None)
    return PolicySpec(
        obs={name: feature.shape[0] for name, feature in seen.items() if not feature.is_image},
        images={name: (feature.shape[0], feature.shape[1], 3) for name, feature in seen.items() if feature.is_image},
        action_dim=sim.action.shape[0],
        action_names=sim.action.names,
        obs_steps=config.obs_steps,
        horizon=config.horizon,
        action_steps=config.action_steps,
        control_hz=sim.control_hz,
        action_mode=sim.action_mode,
        task=sim.name,
    )


def chosen_entries(sim: SimSpec, asked: Sequence[str] | None, *, pictures: bool) -> dict[str, Feature]:
    """What a policy sees of ``sim``: what is asked for, or the default of ``policy.obs``. Raises ConfigError."""
    shown = sim.observation
    if asked is None:
        asked = [name for name, feature in shown.items() if pictures or not feature.is_image]
        asked = [name for name in asked if not pictures or name != "environment_state"]
    for name in asked:
        if name not in shown:
            cameras = " (pictures: sim.cameras=[front])" if name.startswith("image_") else ""
            raise ConfigError(f"policy.obs: {sim.name} shows no {name!r}{did_you_mean(name, shown)}{cameras}")
    seen = {name: shown[name] for name in asked}
    images = [name for name, feature in seen.items() if feature.is_image]
    if pictures and not images:
        raise ConfigError(
            f"this policy sees pictures, and {sim.name} shows none: add sim.cameras=[front,wrist], or choose a policy "
            "of states such as policy=diffusion_mlp"
        )
    if images and not pictures:
        raise ConfigError(f"policy.obs={images} are pictures, which need an encoder: use policy=diffusion_vit")
    return seen


def new_policy(data: DemoData, sim: SimSpec, config: PolicySettings, device: torch.device) -> FinetunablePolicy:
    """A policy with fresh weights (torch's global generator) and the demonstrations' statistics.

    Raises DataError when the demonstrations don't fit the simulator.
    """
    spec = policy_spec(sim, config)
    return fresh_policy(spec, config, fitted_normalizer(data, sim, spec)).to(device)


def fitted_normalizer(data: DemoData, sim: SimSpec, spec: PolicySpec) -> MinMaxNormalizer:
    """The demonstrations' bounds. Raises DataError or ConfigError when they don't fit the simulator."""
    data.require(spec.obs, spec.action_dim, spec.images)
    if data.action_mode not in ("", sim.action_mode):
        raise ConfigError(
            f"the demonstrations' actions are {data.action_mode!r}, the simulator takes {sim.action_mode!r}; "
            f"use sim.action_mode={data.action_mode}, or other demonstrations"
        )
    return MinMaxNormalizer.fit(frame_tensors(data, keys=[*spec.obs, "action"]))


def fresh_policy(spec: PolicySpec, config: PolicySettings, normalizer: MinMaxNormalizer) -> FinetunablePolicy:
    """A policy on the CPU with fresh weights, from torch's global generator."""
    if isinstance(config, ChunkPolicySettings):
        return build_chunk_policy(spec, config.net, config.process, config.sampling, normalizer, config.vision)
    if isinstance(config, OwnPolicySettings):
        return _own_policy(spec, config, normalizer)
    if isinstance(config, TanhGaussianSettings):
        raise ConfigError(
            "policy=tanh_gaussian is the actor of algo=rlpd and cal_ql; clone policy=gaussian_mlp instead"
        )
    make = build_gaussian if config.kind is DirectKind.GAUSSIAN else build_gmm
    return make(spec, config.net, config.sampling, normalizer, config.vision)


def _own_policy(spec: PolicySpec, config: OwnPolicySettings, normalizer: MinMaxNormalizer) -> FinetunablePolicy:
    """Raises ConfigError unless ``config.make`` names a function that returns one of robopo's policies."""
    if config.make is None:
        raise ConfigError("policy.make is empty: give it the _target_ of a function of spec and normalizer")
    # Partial, since Hydra would turn the spec into a configuration.
    policy = build({**config.make, "_partial_": True})(spec=spec, normalizer=normalizer)
    if not isinstance(policy, ChunkPolicy | GaussianPolicy | GMMPolicy):
        raise ConfigError(
            f"{config.make['_target_']} made a {type(policy).__name__}: expected a ChunkPolicy, GaussianPolicy or "
            "GMMPolicy, which can be saved and loaded"
        )
    return policy


class Cloning(NamedTuple):
    """A cloning stage, and the policy that ``refresh`` sets to the averaged weights of now."""

    stage: CloningStage
    averaged: FinetunablePolicy
    refresh: Callable[[], None]


def cloning_stage(
    policy: FinetunablePolicy,
    data: DemoData,
    config: BCConfig,
    *,
    updates_per_iteration: int,
    seeds: SeedTree,
    device: torch.device,
    provenance: Mapping[str, Any],
) -> Cloning:
    """Fits ``policy``, on its device, to ``data``. Checkpoints hold the averaged weights."""
    algorithm = BC(policy, config)
    averaged = copy.deepcopy(policy).eval()

    def refresh() -> None:
        algorithm.ema.copy_to(averaged.net)

    def export(folder: Path) -> None:
        refresh()
        save_policy(folder, averaged, provenance)

    spec, keys = policy.spec, [*policy.spec.obs, *policy.spec.images]
    windows = WindowDataset(data, obs_steps=spec.obs_steps, horizon=spec.horizon, device=device, keys=keys)
    stage = CloningStage(
        windows=windows,
        algorithm=algorithm,
        modules={"policy": policy},
        batch_size=config.batch_size,
        updates_per_iteration=updates_per_iteration,
        order_generator=seeds.torch("order"),
        noise_generator=seeds.torch("noise", device),
        export=export,
    )
    return Cloning(stage, averaged, refresh)


def scratch_policy(sim: SimSpec, config: PolicySettings, device: torch.device) -> FinetunablePolicy:
    """A policy with fresh weights and no data: actions as the simulator bounds them."""
    spec = policy_spec(sim, config)
    return fresh_policy(spec, config, scratch_normalizer(spec.obs, sim.action.low, sim.action.high)).to(device)


def selection_evaluator(
    policy: Policy, sim: VecSim, n: int, device: torch.device, *, before: Callable[[], None] | None = None
) -> Evaluate:
    """Success (where the simulator knows it) and return on ``n`` episodes of the seeds for choosing checkpoints.

    before: called first, for example to take on averaged weights.
    """
    seeds = evaluation_seeds(n, SeedPurpose.SELECTION)

    def run(done: int) -> dict[str, float]:  # noqa: ARG001 - the same episodes every time
        if before is not None:
            before()
        report = evaluate(policy, sim, seeds=seeds, device=device)
        found = {"eval/n": float(report.n), "eval/return": report.mean_return, "eval/steps": report.mean_steps}
        if report.has_success:
            found |= {"success": report.success.point, "eval/successes": float(report.successes)}
        return found

    return run
