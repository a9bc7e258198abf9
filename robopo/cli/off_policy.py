"""Stages of DPPO's baselines from configurations: weighted regression on rollouts, and learning from a buffer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

from robopo.algos.best_of_n_io import save_best_of_n
from robopo.algos.cal_ql import CalQL, CalQLConfig
from robopo.algos.choices import RolloutKind
from robopo.algos.dawr import DAWR, DAWRConfig
from robopo.algos.dipo import DIPO, DIPOConfig
from robopo.algos.dql import DQL, DQLConfig
from robopo.algos.drwr import DRWR, DRWRConfig
from robopo.algos.ibrl import IBRL, IBRLConfig
from robopo.algos.idql import IDQL, IDQLConfig
from robopo.algos.off_policy import Explorer, OffPolicyAlgorithm
from robopo.algos.podpo import PODPO, PODPOConfig
from robopo.algos.qsm import QSM, QSMConfig
from robopo.algos.rlpd import RLPD, RLPDConfig
from robopo.cli.algo_schema import OffPolicySettings
from robopo.cli.finetuning import Seeds, make_collector, on_policy_stage, value_net
from robopo.cli.schema import FinetuneConfig
from robopo.critics.q_ensemble import QEnsemble
from robopo.data.demo import DemoData
from robopo.data.replay import ReplayBuffer, demo_transitions, seed_with
from robopo.errors import ConfigError
from robopo.policies.base import Policy, PolicySpec
from robopo.policies.chunk_policy import ACTION, ChunkPolicy
from robopo.policies.gaussian import GaussianPolicy
from robopo.policies.io import SavedPolicy, save_policy
from robopo.policies.tanh_gaussian import TanhGaussianPolicy
from robopo.train.off_policy import OffPolicyStage
from robopo.train.offline import OfflineFirst, OfflineStage
from robopo.train.stages import OnPolicyStage, Stage
from sims.base import VecSim

type RegressionConfig = DRWRConfig | DAWRConfig | PODPOConfig
type MethodConfig = DIPOConfig | IDQLConfig | DQLConfig | QSMConfig | RLPDConfig | CalQLConfig | IBRLConfig


class Parts(NamedTuple):
    """A method, ready to run. acting: what is evaluated and exported."""

    algorithm: Any
    modules: dict[str, nn.Module]
    acting: Policy
    export: Callable[[Path], None]


def regression_stage(
    policy: SavedPolicy,
    sim: VecSim,
    config: RegressionConfig,
    finetune: FinetuneConfig,
    *,
    seeds: Seeds,
    provenance: Mapping[str, Any],
) -> tuple[OnPolicyStage, Policy]:
    """DRWR, DAWR or PODPO on fresh rollouts; all of the policy's steps learn."""
    chunk = _chunk_policy(policy, type(config).__name__)
    _numbers_alone(chunk.spec, type(config).__name__.removesuffix("Config"))
    chunk.begin_finetuning(chunk.process.num_steps)
    modules: dict[str, nn.Module] = {"policy": chunk}
    match config:
        case DRWRConfig():
            algorithm = DRWR(chunk, config)
        case DAWRConfig():
            modules["critic"] = critic = value_net(chunk.spec, finetune, chunk, seeds.device)
            algorithm = DAWR(chunk, critic, config)
        case PODPOConfig():
            modules["critic"] = critic = value_net(chunk.spec, finetune, chunk, seeds.device)
            algorithm = PODPO(chunk, critic, config)
    collector = make_collector(sim, chunk, RolloutKind.PLAIN, None, seeds)
    stage = on_policy_stage(
        algorithm, collector, modules, finetune, seeds, lambda folder: save_policy(folder, chunk, provenance)
    )
    return stage, chunk


def off_policy_stage(
    policy: SavedPolicy,
    sim: VecSim,
    settings: OffPolicySettings,
    finetune: FinetuneConfig,
    *,
    seeds: Seeds,
    provenance: Mapping[str, Any],
    demos: DemoData | None = None,
    cloned: Policy | None = None,
) -> tuple[Stage, Policy]:
    """A baseline with a buffer. demos: of RLPD, Cal-QL and, if given, IBRL. cloned: the policy that IBRL starts beside.

    Raises ConfigError when the method and the kind of policy, or what it needs, don't go together.
    """
    spec = policy.spec
    _numbers_alone(spec, type(settings.method).__name__.removesuffix("Config"))
    critic = QEnsemble(
        spec.obs, spec.obs_steps, spec.action_steps, spec.action_dim, settings.critic, policy.normalizer
    ).to(seeds.device)
    parts = _parts(policy, critic, settings, finetune, seeds, provenance, demos, cloned)
    cal_ql: CalQL | None = parts.algorithm if isinstance(parts.algorithm, CalQL) else None
    buffer = ReplayBuffer(spec, settings.capacity, extras={"mc_return": ()} if cal_ql else None, device=seeds.device)
    if isinstance(parts.algorithm, IBRL) and demos is not None:
        seed_with(buffer, demo_transitions(demos, spec, lambda action: policy.normalizer.apply(ACTION, action)))
    algorithm: OffPolicyAlgorithm = parts.algorithm
    stage = OffPolicyStage(
        collector=make_collector(sim, Explorer(algorithm), RolloutKind.PLAIN, None, seeds),
        algorithm=algorithm,
        buffer=buffer,
        modules=parts.modules,
        num_decisions=finetune.num_decisions,
        sample_generator=seeds.tree.torch("sample", seeds.device),
        update_generator=seeds.tree.torch("update", seeds.device),
        export=parts.export,
        start_size=settings.start_size,
        columns=cal_ql.columns if cal_ql else None,
    )
    if settings.offline_iterations == 0:
        return stage, parts.acting
    if cal_ql is None:
        raise ConfigError(
            f"algo.offline_iterations={settings.offline_iterations}: only algo=cal_ql learns offline first"
        )
    offline = OfflineStage(
        algorithm=cal_ql,
        modules=parts.modules,
        updates_per_iteration=settings.offline_updates,
        generator=seeds.tree.torch("offline", seeds.device),
        export=parts.export,
    )
    return OfflineFirst(offline, stage, settings.offline_iterations), parts.acting


def _parts(
    policy: SavedPolicy,
    critic: QEnsemble,
    settings: OffPolicySettings,
    finetune: FinetuneConfig,
    seeds: Seeds,
    provenance: Mapping[str, Any],
    demos: DemoData | None,
    cloned: Policy | None,
) -> Parts:
    modules: dict[str, nn.Module] = {"policy": policy, "critic": critic}
    config: MethodConfig | None = settings.method
    name = type(config).__name__.removesuffix("Config")
    match config:
        case DIPOConfig():
            algorithm = DIPO(_chunk_policy(policy, name), critic, config)
        case DQLConfig():
            algorithm = DQL(_chunk_policy(policy, name), critic, config)
        case QSMConfig():
            algorithm = QSM(_chunk_policy(policy, name), critic, config)
        case IDQLConfig():
            chunk = _chunk_policy(policy, name)
            modules["value"] = value = value_net(policy.spec, finetune, chunk, seeds.device)
            idql = IDQL(chunk, critic, value, config)
            return Parts(idql, modules, idql.acting, lambda folder: save_best_of_n(folder, idql.acting, provenance))
        case RLPDConfig():
            algorithm = RLPD(_squashed(policy, name), critic, _demo_buffer(policy, demos, seeds, name, None), config)
        case CalQLConfig():
            buffer = _demo_buffer(policy, demos, seeds, name, config.gamma)
            algorithm = CalQL(_squashed(policy, name), critic, buffer, config)
        case IBRLConfig():
            if cloned is None or not isinstance(policy, GaussianPolicy):
                raise ConfigError(
                    f"algo=ibrl trains a Gaussian policy beside a cloned one, and this is a {type(policy).__name__}; "
                    "give checkpoint=<clone> and policy=gaussian_mlp with the clone's horizon and action_steps"
                )
            algorithm = IBRL(cloned, policy, critic, config)
        case None:
            raise ConfigError("algo.method is empty: start from a complete row, such as algo=idql")
    acting: Any = getattr(algorithm, "acting", policy)
    return Parts(algorithm, modules, acting, lambda folder: save_policy(folder, acting, provenance))


def _chunk_policy(policy: SavedPolicy, method: str) -> ChunkPolicy:
    if not isinstance(policy, ChunkPolicy):
        raise ConfigError(
            f"{method} learns a diffusion or flow policy, and this is a {type(policy).__name__}; "
            "clone one with policy=diffusion_mlp or flow_mlp"
        )
    return policy


def _squashed(policy: SavedPolicy, method: str) -> TanhGaussianPolicy:
    if not isinstance(policy, TanhGaussianPolicy):
        raise ConfigError(
            f"{method} learns a squashed Gaussian, and this is a {type(policy).__name__}; use policy=tanh_gaussian"
        )
    return policy


def _demo_buffer(
    policy: SavedPolicy, demos: DemoData | None, seeds: Seeds, method: str, gamma: float | None
) -> ReplayBuffer:
    if demos is None:
        raise ConfigError(f"{method} learns from demonstrations and experience together: give demos=")
    rows = demo_transitions(demos, policy.spec, lambda action: policy.normalizer.apply(ACTION, action), gamma=gamma)
    extras = None if gamma is None else {"mc_return": ()}
    buffer = ReplayBuffer(policy.spec, rows.reward.shape[0], extras=extras, device=seeds.device)
    seed_with(buffer, rows)
    return buffer


def _numbers_alone(spec: PolicySpec, method: str) -> None:
    """Raise ConfigError for a policy of pictures: these methods' critics and regressions see numbers."""
    if spec.images:
        raise ConfigError(
            f"{method} learns from numbers alone, and this policy sees {', '.join(spec.images)}; fine-tune it with a "
            "row of the policy-gradient family, such as algo=dppo_pixels"
        )
