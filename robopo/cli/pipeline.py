"""Joins simulators, data, policies and algorithms into stages: what ``train`` and ``demo`` have in common."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robopo.algos.bc import BC, BCConfig
from robopo.algos.choices import AdvantageEstimator, Ratio, TrustRegion
from robopo.algos.jagg import Jagg
from robopo.algos.optimizers import OptimizerChoice
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.algos.regularisers import Demonstrations
from robopo.cli.configs import build
from robopo.cli.policy_schema import ChunkPolicySettings, DirectKind, PolicySettings
from robopo.cli.schema import FinetuneConfig
from robopo.critics.value import ValueNet
from robopo.data.demo import DemoData
from robopo.data.sampler import WindowDataset, frame_tensors
from robopo.errors import ConfigError
from robopo.eval.evaluate import evaluate
from robopo.eval.seeds import SeedPurpose, evaluation_seeds
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.gaussian_build import build_gaussian, build_gmm
from robopo.policies.gmm import GMMPolicy
from robopo.policies.io import save_policy
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.rollout.collector import Collector
from robopo.train.loop import Evaluate
from robopo.train.seeding import SeedTree
from robopo.train.stages import CloningStage, OnPolicyStage
from sims.base import SimSpec, VecSim

type FinetunablePolicy = ChunkPolicy | GaussianPolicy | GMMPolicy
"""What cloning makes and the policy-gradient family improves."""


def policy_spec(sim: SimSpec, config: PolicySettings) -> PolicySpec:
    """Names and sizes from the simulator, chunk sizes from the configuration."""
    return PolicySpec(
        obs={name: feature.shape[0] for name, feature in sim.observation.items()},
        action_dim=sim.action.shape[0],
        action_names=sim.action.names,
        obs_steps=config.obs_steps,
        horizon=config.horizon,
        action_steps=config.action_steps,
        control_hz=sim.control_hz,
        action_mode=sim.action_mode,
        task=sim.name,
    )


def new_policy(data: DemoData, sim: SimSpec, config: PolicySettings, device: torch.device) -> FinetunablePolicy:
    """A policy with fresh weights (torch's global generator) and the demonstrations' statistics.

    Raises DataError when the demonstrations don't fit the simulator.
    """
    spec = policy_spec(sim, config)
    data.require(spec.obs, spec.action_dim)
    if data.action_mode not in ("", sim.action_mode):
        raise ConfigError(
            f"the demonstrations' actions are {data.action_mode!r}, the simulator takes {sim.action_mode!r}; "
            f"use sim.action_mode={data.action_mode}, or other demonstrations"
        )
    normalizer = MinMaxNormalizer.fit(
        {key: x for key, x in frame_tensors(data).items() if key in {*spec.obs, "action"}}
    )
    return fresh_policy(spec, config, normalizer).to(device)


def fresh_policy(spec: PolicySpec, config: PolicySettings, normalizer: MinMaxNormalizer) -> FinetunablePolicy:
    """A policy on the CPU with fresh weights, from torch's global generator."""
    if isinstance(config, ChunkPolicySettings):
        return build_chunk_policy(spec, config.net, config.process, config.sampling, normalizer)
    make = build_gaussian if config.kind is DirectKind.GAUSSIAN else build_gmm
    return make(spec, config.net, config.sampling, normalizer)


class Cloning(NamedTuple):
    """A cloning stage, and the policy that ``refresh`` sets to the averaged weights of now."""

    stage: CloningStage
    averaged: ChunkPolicy
    refresh: Callable[[], None]


def cloning_stage(
    policy: ChunkPolicy,
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

    windows = WindowDataset(data, obs_steps=policy.spec.obs_steps, horizon=policy.spec.horizon, device=device)
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


class Choices(NamedTuple):
    """The objects behind an algorithm's row. optimizer, accelerator: None for the default."""

    ratio: Ratio
    advantage: AdvantageEstimator
    trust_region: TrustRegion
    optimizer: OptimizerChoice | None
    accelerator: Jagg | None


def algorithm_choices(config: PolicyGradientConfig) -> Choices:
    """Build what ``config`` names. Raises ConfigError where an axis is empty, or a setting out of range."""
    for axis in ("ratio", "advantage", "trust_region"):
        if getattr(config, axis) is None:
            raise ConfigError(f"algo.{axis} is empty: start from a complete row, such as algo=dppo")
    built: dict[str, Any] = {axis: getattr(config, axis) for axis in Choices._fields}
    for axis, node in built.items():
        built[axis] = None if node is None else build(node)
    return Choices(**built)


def for_finetuning(policy: ChunkPolicy, config: FinetuneConfig) -> ChunkPolicy:
    """The same networks, exploring and scoring as ``config`` asks."""
    floor = config.std_floor or policy.config.sampling_std_floor
    sampling = dataclasses.replace(
        policy.config,
        sampling_std_floor=floor,
        logprob_std_floor=config.logprob_std_floor or floor,
        reduce=config.reduce or policy.config.reduce,
        compat_published=config.compat_published or policy.config.compat_published,
    )
    if sampling == policy.config:
        return policy
    changed = ChunkPolicy(policy.spec, policy.net, policy.process, policy.normalizer, sampling)
    if policy.frozen_net is not None:
        changed.frozen_net = policy.frozen_net
    return changed


def finetuning_stage(
    policy: ChunkPolicy,
    sim: VecSim,
    config: PolicyGradientConfig,
    finetune: FinetuneConfig,
    *,
    demonstrations: Demonstrations | None = None,
    seeds: SeedTree,
    device: torch.device,
    provenance: Mapping[str, Any],
) -> OnPolicyStage:
    """Fine-tunes ``policy``, on its device, in ``sim``; the critic's weights come from torch's global generator."""
    chosen = algorithm_choices(config)
    policy.begin_finetuning(finetune.ft_steps)
    spec = policy.spec
    critic = ValueNet(spec.obs, spec.obs_steps, finetune.critic_hidden, policy.normalizer).to(device)
    collector = Collector(sim, policy, device=device)
    collector.reset(seeds.int("episodes") % 2**31 % 10**9)  # below the seeds reserved for evaluation
    algorithm = PolicyGradient(
        policy,
        critic,
        config,
        ratio=chosen.ratio,
        advantage=chosen.advantage,
        trust_region=chosen.trust_region,
        optimizer=chosen.optimizer,
        demonstrations=demonstrations,
        accelerator=None if chosen.accelerator is None else chosen.accelerator.build(policy, chosen.ratio),
    )
    return OnPolicyStage(
        collector=collector,
        algorithm=algorithm,
        modules={"policy": policy, "critic": critic},
        num_decisions=finetune.num_decisions,
        sample_generator=seeds.torch("sample", device),
        update_generator=seeds.torch("update", device),
        export=lambda folder: save_policy(folder, policy, provenance),
    )


def selection_evaluator(
    policy: ChunkPolicy, sim: VecSim, n: int, device: torch.device, *, before: Callable[[], None] | None = None
) -> Evaluate:
    """Success on ``n`` episodes of the seeds for choosing checkpoints, as the loop wants it.

    before: called first, for example to take on averaged weights.
    """
    seeds = evaluation_seeds(n, SeedPurpose.SELECTION)

    def run(done: int) -> dict[str, float]:  # noqa: ARG001 - the same episodes every time
        if before is not None:
            before()
        report = evaluate(policy, sim, seeds=seeds, device=device)
        return {
            "success": report.success.point,
            "eval/n": float(report.n),
            "eval/successes": float(report.successes),
            "eval/return": report.mean_return,
            "eval/steps": report.mean_steps,
        }

    return run
