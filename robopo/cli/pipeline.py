"""Joins simulators, data, policies and algorithms into stages: what ``train`` and ``demo`` have in common."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robopo.algos.bc import BC, BCConfig
from robopo.algos.dppo import DPPO
from robopo.algos.dppo_config import DPPOConfig
from robopo.cli.schema import FinetuneConfig, PolicyConfig
from robopo.critics.value import ValueNet
from robopo.data.demo import DemoData
from robopo.data.sampler import WindowDataset, frame_tensors
from robopo.errors import ConfigError
from robopo.eval.evaluate import evaluate
from robopo.eval.seeds import SeedPurpose, evaluation_seeds
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.io import save_policy
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.rollout.collector import Collector
from robopo.train.loop import Evaluate
from robopo.train.seeding import SeedTree
from robopo.train.stages import CloningStage, OnPolicyStage
from sims.base import SimSpec, VecSim


def policy_spec(sim: SimSpec, config: PolicyConfig) -> PolicySpec:
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


def new_policy(data: DemoData, sim: SimSpec, config: PolicyConfig, device: torch.device) -> ChunkPolicy:
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
    return build_chunk_policy(spec, config.net, config.process, config.sampling, normalizer).to(device)


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
    config: DPPOConfig,
    finetune: FinetuneConfig,
    *,
    seeds: SeedTree,
    device: torch.device,
    provenance: Mapping[str, Any],
) -> OnPolicyStage:
    """Fine-tunes ``policy``, on its device, in ``sim``; the critic's weights come from torch's global generator."""
    policy.begin_finetuning(finetune.ft_steps)
    spec = policy.spec
    critic = ValueNet(spec.obs, spec.obs_steps, finetune.critic_hidden, policy.normalizer).to(device)
    collector = Collector(sim, policy, device=device)
    collector.reset(seeds.int("episodes") % 2**31 % 10**9)  # below the seeds reserved for evaluation
    return OnPolicyStage(
        collector=collector,
        algorithm=DPPO(policy, critic, config),
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
