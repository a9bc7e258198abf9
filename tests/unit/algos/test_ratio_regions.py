"""Every ratio with every trust region on a real flow policy: two updates, then the same from a fresh copy."""

from __future__ import annotations

import math

import pytest
import torch

from robopo.algos.choices import Ratio, TrustRegion
from robopo.algos.dppo import Clip, PerStep
from robopo.algos.flow_dppo import DivergenceMask
from robopo.algos.fpo import ASPO, CfmRatio
from robopo.algos.gae_advantage import GAE
from robopo.algos.grpo_guard import NormalizedRatio
from robopo.algos.no_region import Unbounded
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.algos.reinflow import Chain
from robopo.algos.soft_gate import DivergenceGate, SoftGate
from robopo.algos.spo import SPO
from robopo.critics.value import ValueNet
from robopo.errors import ConfigError
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.processes.exploration import Exploration
from robopo.processes.flow import FlowConfig
from robopo.processes.transitions import CPS, ODE, FlowSDE, LearnedNoise, TransitionKernel
from robopo.types import RolloutBatch
from tests.unit.policies.toy import DDIM_5, SPEC, make_policy, rng

RATIOS: list[tuple[Ratio, TransitionKernel]] = [
    (PerStep(), CPS()),
    (Chain(), LearnedNoise()),
    (Chain(normalised=False), FlowSDE()),
    (NormalizedRatio(), FlowSDE()),
    (CfmRatio(num_samples=4), ODE()),
    (CfmRatio(granularity="per_action"), ODE(0.02)),  # type: ignore[arg-type]
]
REGIONS: list[TrustRegion] = [
    Clip(),
    DivergenceMask(),
    DivergenceMask(direction="paper", dual_clip=None),  # type: ignore[arg-type]
    SPO(),
    ASPO(),
    SoftGate(),
    DivergenceGate(),
    Unbounded(),
]
CONFIG = PolicyGradientConfig(epochs=2, batch_size=16, critic_warmup_iterations=0, scale_rewards=False)


def flow(kernel: TransitionKernel, *, ft: int = 4) -> ChunkPolicy:
    policy = make_policy(process=FlowConfig(num_steps=4), config=ChunkPolicyConfig(reduce=Reduce.SUM))
    policy.begin_finetuning(ft, Exploration(kernel))
    return policy


def batch(policy: ChunkPolicy, T: int = 6, E: int = 4) -> RolloutBatch:
    g = rng(5)
    obs = {key: torch.randn(T * E, SPEC.obs_steps, size, generator=g) for key, size in SPEC.obs.items()}
    chain = policy.sample_chain(obs, generator=g)[1]
    shaped = {key: value.unflatten(0, (T, E)) for key, value in obs.items()}
    never = torch.zeros(T, E, dtype=torch.bool)
    parts = {name: getattr(chain, name) for name in ("latents", "log_probs", "means", "stds", "active")}
    return RolloutBatch(
        obs=shaped,
        next_obs=shaped,
        reward=torch.randn(T, E, generator=g),
        terminated=never,
        truncated=never,
        first=never,
        **{name: None if value is None else value.unflatten(0, (T, E)) for name, value in parts.items()},
    )


def updated(ratio: Ratio, region: TrustRegion, kernel: TransitionKernel):
    policy = flow(kernel)
    torch.manual_seed(1)
    critic = ValueNet(SPEC.obs, SPEC.obs_steps, (8, 8, 8))
    algo = PolicyGradient(policy, critic, CONFIG, ratio=ratio, advantage=GAE(), trust_region=region)
    before = [p.detach().clone() for p in policy.trainable()]
    metrics = [algo.update(batch(policy), generator=rng(3)) for _ in range(2)]
    return metrics, before, [p.detach() for p in policy.trainable()]


@pytest.mark.parametrize("region", REGIONS, ids=lambda r: type(r).__name__)
@pytest.mark.parametrize(("ratio", "kernel"), RATIOS, ids=lambda c: type(c).__name__)
def test_two_updates(ratio: Ratio, kernel: TransitionKernel, region: TrustRegion) -> None:
    metrics, before, after = updated(ratio, region, kernel)
    for m in metrics:
        assert math.isfinite(m.actor_loss) and m.actor_grad_norm > 0.0
        assert 0.5 < m.ratio_mean < 2.0
        if region.needs_divergence:
            assert m.chain_kl is not None and m.chain_kl > 0.0
    assert all(not new.equal(old) for new, old in zip(after, before, strict=True) if old.abs().sum() > 0)


@pytest.mark.parametrize(("ratio", "kernel"), RATIOS, ids=lambda c: type(c).__name__)
def test_ratio_is_one_on_policy_in_single_precision(ratio: Ratio, kernel: TransitionKernel) -> None:
    policy = flow(kernel)
    algo = PolicyGradient(
        policy, ValueNet(SPEC.obs, SPEC.obs_steps, (8, 8, 8)), CONFIG, ratio=ratio, advantage=GAE(), trust_region=SPO()
    )
    data, _ = algo._targets(batch(policy))
    run = algo._begin(data, rng(3), actor_learns=True)
    out = ratio.evaluate(policy, run.data, run.units.flip(0)[:7])
    assert out.log_ratio.abs().max() < 1e-4


def test_a_flow_whose_first_steps_are_frozen_is_refused_where_all_times_learn() -> None:
    with pytest.raises(ConfigError, match=r"CfmRatio .*ft_steps=3.*ft_steps=4"):
        CfmRatio().check(flow(ODE(), ft=3))
    CfmRatio().check(flow(ODE()))


def test_diffusion_has_no_velocity_and_no_lengths() -> None:
    diffusion = make_policy(process=DDIM_5)
    diffusion.begin_finetuning(2)
    Chain().check(diffusion)
    with pytest.raises(ConfigError, match="CfmRatio needs a velocity"):
        CfmRatio().check(diffusion)
    with pytest.raises(ConfigError, match="step_weight=false"):
        NormalizedRatio().check(diffusion)
