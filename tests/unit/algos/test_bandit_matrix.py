"""Every source of noise with every trust region learns a bandit with two modes, from a clone that knows neither."""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterator
from statistics import mean
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from robopo.algos.choices import Ratio, TrustRegion
from robopo.algos.dppo import Clip, PerStep
from robopo.algos.flow_dppo import DivergenceMask
from robopo.algos.fpo import CfmRatio
from robopo.algos.gae_advantage import GAE
from robopo.algos.no_region import Unbounded
from robopo.algos.policy_gradient import PolicyGradient
from robopo.algos.policy_gradient_config import PolicyGradientConfig
from robopo.algos.soft_gate import DivergenceGate, SoftGate
from robopo.algos.spo import SPO
from robopo.critics.value import ValueNet
from robopo.losses.divergence import MaskDirection
from robopo.nn.mlp import DiffusionMLPConfig
from robopo.policies.base import PolicySpec
from robopo.policies.build import build_chunk_policy
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.policies.config import ChunkPolicyConfig, Reduce
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.processes.exploration import Exploration
from robopo.processes.flow import FlowConfig
from robopo.processes.transitions import CPS, ODE, DanceSDE, FlowSDE, LearnedNoise, TransitionKernel
from robopo.types import RolloutBatch

SPEC = PolicySpec(
    obs={"state": 1}, action_dim=2, action_names=("x", "y"), obs_steps=1, horizon=1, action_steps=1, task="bandit"
)
CLONE_STD = 0.25  # wide enough that the four steps leave a std of .16 to explore with, and narrow: one mode
ENVS = 128
UPDATES = 30
DELTA_CHAIN = 0.05  # the robot rows' default
# Six steps per update. At 5e-4 they leave the mask something to decide: without it, two kernels end an update more than
# twice, up to ten times, DELTA_CHAIN from where it began. At 1e-3 single steps of Adam overshoot any threshold.
# The critic rests: there is one state, and a minibatch's advantages are standardised, so a baseline changes nothing.
CONFIG = PolicyGradientConfig(
    epochs=3,
    batch_size=256,
    actor_lr=5e-4,
    vf_coef=0.0,
    lr_warmup_iterations=0,
    critic_warmup_iterations=0,
    scale_rewards=False,
)
GAIN = 1.3
"""The clone earns .57, the top of the better hill 1.01: 76 % more. Less than half of that is asked; every pair gained
55 % or more when it was measured."""

KERNELS: dict[str, tuple[TransitionKernel, Ratio]] = {
    "flow_sde": (FlowSDE(eta=0.3), PerStep(gamma_denoise=1.0, divergence=True)),
    "dance_sde": (DanceSDE(eta=0.3), PerStep(gamma_denoise=1.0, divergence=True)),
    "learned_noise": (LearnedNoise(), PerStep(gamma_denoise=1.0, divergence=True)),
    "ode": (ODE(), CfmRatio(divergence=True)),
}
REGIONS: dict[str, TrustRegion] = {
    "clip": Clip(base=0.2, coef=0.2),
    "dual_clip": Clip(base=0.2, coef=0.2, ratio_cap=3.0),
    "mask_exact": DivergenceMask(delta_chain=DELTA_CHAIN),
    "mask_paper": DivergenceMask(delta_chain=DELTA_CHAIN, direction=MaskDirection.PAPER),
    "spo": SPO(eps=0.2),
    "soft_gate": SoftGate(eps=0.2),
    "divergence_gate": DivergenceGate(delta_chain=DELTA_CHAIN),
    "unbounded": Unbounded(),
}


def reward(action: Tensor) -> Tensor:
    """Two hills, of height 1 at (.5, .5) and .6 at (-.5, -.5); action [N, 2] -> [N]. About .3 between them."""
    best, other = ((action - side * 0.5).square().sum(-1) for side in (1.0, -1.0))
    return torch.exp(-best / 0.5) + 0.6 * torch.exp(-other / 0.5)


def state(n: int) -> dict[str, Tensor]:
    return {"state": torch.zeros(n, 1, 1)}


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def clone() -> ChunkPolicy:
    """A flow of four Euler steps, cloned from N(0, CLONE_STD^2)."""
    torch.manual_seed(0)
    generator = torch.Generator().manual_seed(0)
    unit = {key: (-torch.ones(size), torch.ones(size)) for key, size in {"state": 1, "action": 2}.items()}
    policy = build_chunk_policy(
        SPEC,
        DiffusionMLPConfig(hidden=(32, 32, 32), time_dim=8),
        FlowConfig(num_steps=4),
        ChunkPolicyConfig(reduce=Reduce.SUM, denoised_clip=None),
        MinMaxNormalizer(unit),
    )
    optimizer = torch.optim.Adam(policy.net.parameters(), lr=3e-3)
    for _ in range(400):
        action = CLONE_STD * torch.randn(256, 1, 2, generator=generator)
        loss = policy.bc_loss(state(256), action, generator)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return policy


def deployed(policy: ChunkPolicy) -> Tensor:
    """Actions [4096, 2] as the policy is used: without noise along the path."""
    return policy.act(state(4096), generator=torch.Generator().manual_seed(5))[:, 0]


def rollout(policy: ChunkPolicy, generator: torch.Generator) -> RolloutBatch:
    """ENVS episodes of one decision."""
    action, chain = policy.sample_chain(state(ENVS), generator=generator)
    obs, done = {"state": torch.zeros(1, ENVS, 1, 1)}, torch.ones(1, ENVS, dtype=torch.bool)
    parts = {name: getattr(chain, name) for name in ("latents", "log_probs", "means", "stds", "active")}
    return RolloutBatch(
        obs=obs,
        next_obs=obs,
        reward=reward(action[:, 0])[None],
        terminated=done,
        truncated=~done,
        first=done,
        **{name: None if value is None else value[None] for name, value in parts.items()},
    )


class Run(NamedTuple):
    rewards: list[float]  # of the deployed policy: before, and after the last update
    explored: list[float]  # mean reward of each update's rollout
    chain_kl: list[float]  # at the end of each update


def learn(start: ChunkPolicy, kernel: TransitionKernel, ratio: Ratio, region: TrustRegion) -> Run:
    policy = copy.deepcopy(start)
    torch.manual_seed(1)
    policy.begin_finetuning(4, Exploration(kernel))
    critic = ValueNet(SPEC.obs, SPEC.obs_steps, (8, 8, 8))
    algorithm = PolicyGradient(policy, critic, CONFIG, ratio=ratio, advantage=GAE(), trust_region=region)
    generator = torch.Generator().manual_seed(2)
    run = Run([float(reward(deployed(policy)).mean())], [], [])
    for _ in range(UPDATES):
        batch = rollout(policy, generator)
        metrics = algorithm.update(batch, generator=generator)
        assert metrics.chain_kl is not None
        run.explored.append(float(batch.reward.mean()))
        run.chain_kl.append(metrics.chain_kl)
    run.rewards.append(float(reward(deployed(policy)).mean()))
    return run


def at_equal_kl(runs: dict[str, Run]) -> dict[str, float]:
    """Mean reward of the rollouts once each run has moved as far as the shortest of them, by its updates' KL."""
    travelled = {name: list(itertools.accumulate(run.chain_kl)) for name, run in runs.items()}
    budget = min(path[-1] for path in travelled.values())
    reached = {name: next(n for n, kl in enumerate(path) if kl >= budget) for name, path in travelled.items()}
    return {name: run.explored[min(reached[name] + 1, UPDATES - 1)] for name, run in runs.items()}


@pytest.fixture(scope="module", params=list(KERNELS))
def kernel(request: pytest.FixtureRequest) -> str:
    """Of the module, so that all tests of one kernel follow each other and its runs are made once, for them alone."""
    return request.param


@pytest.fixture(scope="module")
def runs(clone: ChunkPolicy, kernel: str) -> dict[str, Run]:
    noise, ratio = KERNELS[kernel]
    return {name: learn(clone, noise, ratio, region) for name, region in REGIONS.items()}


def test_every_trust_region_raises_the_reward(kernel: str, runs: dict[str, Run], record_property: Any) -> None:
    fair = at_equal_kl(runs)
    print(f"\n{kernel:15s} reward before, after, at equal KL, mean KL of an update")
    for name, run in runs.items():
        before, after = run.rewards
        record_property(f"{kernel} {name} reward at equal KL", round(fair[name], 3))
        print(f"{name:15s} {before:.3f} {after:.3f} {fair[name]:.3f} {mean(run.chain_kl):.4f}")
        assert after >= GAIN * before, name


def test_the_mask_keeps_updates_within_twice_its_threshold(kernel: str, runs: dict[str, Run]) -> None:
    for region in ("mask_exact", "mask_paper"):
        assert mean(runs[region].chain_kl) <= 2.0 * DELTA_CHAIN, region
    # So it is the mask that holds the KL, not the learning rate; the other kernels stay near by themselves here.
    if kernel in ("flow_sde", "learned_noise"):
        assert mean(runs["unbounded"].chain_kl) > 2.0 * DELTA_CHAIN


def test_cps_explores_no_more_than_the_ode(clone: ChunkPolicy) -> None:
    """Why it is not among the kernels above: what it adds is taken from the latent, where FlowSDE only adds."""
    plain = deployed(clone).std(0)
    stds = {}
    for name, kernel in (("cps", CPS(eta=0.3)), ("flow_sde", FlowSDE(eta=0.3))):
        policy = copy.deepcopy(clone)
        policy.begin_finetuning(4, Exploration(kernel))
        action = policy.sample_chain(state(4096), generator=torch.Generator().manual_seed(7))[0]
        stds[name] = action[:, 0].std(0)
    # 4096 draws know a std to 1.1 %; the kernel's own bias at this width is 2 % (at the clone's std of .1: none)
    torch.testing.assert_close(stds["cps"], plain, rtol=0.05, atol=0.0)
    assert (stds["flow_sde"] > 1.15 * plain).all()
