"""On-policy stages from configurations: the policy-gradient family, and the regressions on fresh rollouts."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch

from robopo.algos.choices import AdvantageEstimator, Ratio, RolloutKind, TrustRegion
from robopo.algos.jagg import Jagg
from robopo.algos.optimizers import OptimizerChoice
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.algos.regularisers import Demonstrations
from robopo.cli.configs import build
from robopo.cli.critics import JoinedStats, make_critic, policy_critic
from robopo.cli.pipeline import FinetunablePolicy
from robopo.cli.schema import FinetuneConfig
from robopo.critics.value import ValueNet
from robopo.errors import ConfigError
from robopo.eval.seeds import RESERVED
from robopo.policies.base import Policy, PolicySpec
from robopo.policies.build import with_num_steps
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.io import save_policy
from robopo.policies.running_stats import RunningObsStats
from robopo.processes.exploration import Exploration
from robopo.rollout.augmented import AugmentedRollouts
from robopo.rollout.collector import Collector
from robopo.rollout.episodes import EpisodeSeeds
from robopo.rollout.group_collector import GroupCollector, GroupConfig
from robopo.rollout.vine import VineCollector, VineConfig
from robopo.train.seeding import SeedTree
from robopo.train.stages import ObservationStats, OnPolicyAlgorithm, OnPolicyStage, RolloutSource
from sims.base import VecSim


class Choices(NamedTuple):
    """The objects behind an algorithm's row; None: the default, or nothing."""

    exploration: Exploration | None
    ratio: Ratio
    advantage: AdvantageEstimator
    rollout: GroupConfig | VineConfig | None
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


class Seeds(NamedTuple):
    """Where a stage's random numbers come from, and where its tensors lie."""

    tree: SeedTree
    device: torch.device

    def episodes(self) -> int:
        """Seed of training episodes, below those reserved for evaluation."""
        return self.tree.int("episodes") % 2**31 % 10**9


def for_finetuning(
    policy: FinetunablePolicy, config: FinetuneConfig, reduce: Any = None, exploration: Exploration | None = None
) -> FinetunablePolicy:
    """The same networks, exploring and scoring as the configuration asks; fine-tuning has begun.

    reduce: the algorithm's own, if ``config`` names none.
    """
    reduce = config.reduce or reduce or policy.config.reduce
    if not isinstance(policy, ChunkPolicy):
        if exploration is not None:
            raise ConfigError(
                f"algo.exploration={type(exploration.kernel).__name__} needs denoising steps, and a "
                f"{type(policy).__name__} has none; use algo=gaussian_ppo, or a flow or diffusion policy"
            )
        policy.config = replace(policy.config, reduce=reduce)
        policy.begin_finetuning(1 if config.ft_steps is None else config.ft_steps)
        return policy
    if config.num_steps is not None:
        policy = with_num_steps(policy, config.num_steps)
    floor = config.std_floor or policy.config.sampling_std_floor
    sampling = replace(
        policy.config,
        sampling_std_floor=floor,
        logprob_std_floor=config.logprob_std_floor or floor,
        reduce=reduce,
        compat_published=config.compat_published or policy.config.compat_published,
    )
    if sampling != policy.config:
        frozen = policy.frozen_net
        policy = ChunkPolicy(policy.spec, policy.net, policy.process, policy.normalizer, sampling)
        policy.frozen_net = frozen or policy.frozen_net
    policy.begin_finetuning(policy.process.num_steps if config.ft_steps is None else config.ft_steps, exploration)
    return policy


def policy_gradient_stage(
    policy: FinetunablePolicy,
    sim: VecSim,
    config: PolicyGradientConfig,
    finetune: FinetuneConfig,
    *,
    seeds: Seeds,
    provenance: Mapping[str, Any],
    demonstrations: Demonstrations | None = None,
    learn_observations: bool = False,
) -> tuple[OnPolicyStage, FinetunablePolicy]:
    """Improves ``policy``, on its device, in ``sim``; the critic's weights come from torch's global generator.

    learn_observations: let the normaliser follow what is seen, for a policy without data.
    """
    chosen = algorithm_choices(config)
    policy = for_finetuning(policy, finetune, config.reduce, chosen.exploration)
    critic = make_critic(policy, sim.spec, finetune, seeds.device)
    algorithm = PolicyGradient(
        policy,
        critic.net,
        config,
        ratio=chosen.ratio,
        advantage=chosen.advantage,
        trust_region=chosen.trust_region,
        optimizer=chosen.optimizer,
        demonstrations=demonstrations,
        accelerator=None if chosen.accelerator is None else chosen.accelerator.build(policy, chosen.ratio),
    )
    asked_by = f"algo.advantage={type(chosen.advantage).__name__}"
    collector = make_collector(sim, policy, chosen.advantage.rollout, chosen.rollout, seeds, asked_by, critic.also)
    if policy.spec.images and finetune.augment:
        collector = AugmentedRollouts(collector, policy)
    stats = [RunningObsStats(policy.normalizer, list(policy.spec.obs))] if learn_observations else []
    stats += [] if critic.stats is None else [critic.stats]
    stage = on_policy_stage(
        algorithm,
        collector,
        {"policy": policy, "critic": critic.net},
        finetune,
        seeds,
        lambda folder: save_policy(folder, policy, provenance),
        stats[0] if len(stats) == 1 else JoinedStats(stats) if stats else None,
    )
    return stage, policy


def value_net(spec: PolicySpec, finetune: FinetuneConfig, policy: FinetunablePolicy, device: torch.device) -> ValueNet:
    """A critic that sees observations as the policy does."""
    return policy_critic(spec, finetune, policy, device)


def make_collector(
    sim: VecSim,
    policy: Policy,
    kind: RolloutKind,
    settings: GroupConfig | VineConfig | None,
    seeds: Seeds,
    asked_by: str = "the algorithm",
    also: Collection[str] = (),
) -> RolloutSource:
    """The collector that an advantage needs. Raises ConfigError where ``algo.rollout`` belongs to another one.

    asked_by: what needs it, for that message. also: entries that the critic sees and the policy doesn't.
    """
    collector: Collector | VineCollector
    match kind, settings:
        case RolloutKind.GROUPS, GroupConfig() | None:
            starts = EpisodeSeeds(seeds.tree.int("episodes") % 2**63, reserved=RESERVED)
            return GroupCollector(sim, policy, settings or GroupConfig(), seeds=starts, device=seeds.device, also=also)
        case RolloutKind.VINE, VineConfig() | None:
            vine_seed = seeds.tree.int("vine") % 2**63
            collector = VineCollector(
                sim, policy, settings or VineConfig(), seed=vine_seed, device=seeds.device, also=also
            )
        case RolloutKind.PLAIN, None:
            collector = Collector(sim, policy, device=seeds.device, also=also)
        case _:
            names = {RolloutKind.PLAIN: "null", RolloutKind.GROUPS: "a GroupConfig", RolloutKind.VINE: "a VineConfig"}
            raise ConfigError(
                f"algo.rollout is a {type(settings).__name__}, but {asked_by} asks for a {kind.value} rollout; "
                f"set algo.rollout to {names[kind]}"
            )
    collector.reset(seeds.episodes())
    return collector


def on_policy_stage(
    algorithm: OnPolicyAlgorithm,
    collector: RolloutSource,
    modules: Mapping[str, torch.nn.Module],
    finetune: FinetuneConfig,
    seeds: Seeds,
    export: Callable[[Path], None],
    observation_stats: ObservationStats | None = None,
) -> OnPolicyStage:
    """A stage with its own streams of random numbers."""
    return OnPolicyStage(
        collector=collector,
        algorithm=algorithm,
        modules=modules,
        num_decisions=finetune.num_decisions,
        sample_generator=seeds.tree.torch("sample", seeds.device),
        update_generator=seeds.tree.torch("update", seeds.device),
        export=export,
        observation_stats=observation_stats,
    )
