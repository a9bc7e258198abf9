"""Diffusion Q-learning: what it clones, and the gradient of Q through the whole chain."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch
from torch import Tensor

from robopo.algos.dql import DQL, BCTarget, DQLConfig
from robopo.errors import ConfigError
from robopo.policies.chunk_policy import ChunkPolicy
from tests.unit.algos.off_policy_kit import (
    DIFFUSION,
    FLOW,
    check_first_updates,
    check_resume,
    check_warmup,
    filled,
    make_critic,
    make_policy,
    rng,
)

SMALL = DQLConfig(batch_size=16, replay_ratio=4.0, actor_lr=1e-3)


def make(config: DQLConfig = SMALL, process=DIFFUSION) -> DQL:
    policy = make_policy(process)
    return DQL(policy, make_critic(policy), config)


@pytest.mark.parametrize("process", [DIFFUSION, FLOW])
def test_the_first_update_moves_every_network(process) -> None:
    algo = make(process=process)
    check_first_updates(algo, algo.acting.net, [algo.q.critic, algo.q.target.module])


def test_warmup_spares_the_policy() -> None:
    check_warmup(lambda: make(dataclasses.replace(SMALL, critic_warmup_iterations=1)), lambda algo: algo.acting.net)


def test_resume_is_exact() -> None:
    check_resume(make, lambda a: {"policy": a.acting, "critic": a.q.critic})


def test_the_denoising_term_clones_the_buffer() -> None:
    """The published baseline cloned the policy's own samples: then the buffer's actions would not matter."""
    algo = make()
    batch = filled(algo).sample(16, rng(1))
    other = dataclasses.replace(batch, action=batch.action + 0.5)

    def bc(target: BCTarget, which) -> float:
        algo.config = dataclasses.replace(SMALL, bc_target=target)
        return float(algo.actor_loss(which, rng())[0].detach())

    assert bc(BCTarget.BUFFER, batch) != bc(BCTarget.BUFFER, other)
    assert bc(BCTarget.SELF, batch) == bc(BCTarget.SELF, other)
    assert bc(BCTarget.SELF, batch) != bc(BCTarget.BUFFER, batch)


def test_own_samples_are_targets_without_a_gradient() -> None:
    """With the chain's gradient in the denoising term, its gradient would change; it is that of a fixed target."""
    algo = make(dataclasses.replace(SMALL, bc_target=BCTarget.SELF))
    batch = filled(algo).sample(16, rng(1))
    net = list(algo.acting.net.parameters())
    bc, _ = algo.actor_loss(batch, rng())
    found = torch.autograd.grad(bc, net)
    generator = rng()
    with torch.no_grad():
        own = algo.acting.sample_differentiable(batch.obs, generator)
    torch.randint(2, (1,), generator=generator)
    expected = torch.autograd.grad(algo.acting.denoising_error(batch.obs, own, generator).mean(), net)
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b)


def test_q_reaches_the_network_through_every_step() -> None:
    """The gradient along a direction equals the finite difference."""
    algo = make()
    obs = {key: value.double() for key, value in filled(algo).sample(16, rng(1)).obs.items()}
    algo.acting.double()
    algo.q.critic.double()

    def worth(policy: ChunkPolicy) -> Tensor:
        return algo.q.critic(obs, policy.sample_differentiable(obs, rng())).mean()

    net = list(algo.acting.net.parameters())
    direction = [torch.randn(p.shape, generator=rng(4), dtype=p.dtype) for p in net]
    gradient = torch.autograd.grad(worth(algo.acting), net)
    slope = sum(float((g * d).sum()) for g, d in zip(gradient, direction, strict=True))

    def at(step: float) -> float:
        moved = copy.deepcopy(algo.acting)
        with torch.no_grad():
            for p, d in zip(moved.net.parameters(), direction, strict=True):
                p.add_(d, alpha=step)
        return float(worth(moved).detach())

    assert slope == pytest.approx((at(1e-6) - at(-1e-6)) / 2e-6, rel=1e-3)
    assert abs(slope) > 1e-3


def test_q_steps_raise_q() -> None:
    """With the critic held still, the policy's own samples become worth more."""
    algo = make(dataclasses.replace(SMALL, alpha=10.0))
    batch = filled(algo).sample(48, rng(1))
    algo.q.step = lambda batch, next_value: next_value.new_zeros(())  # type: ignore[method-assign]

    def worth() -> float:
        with torch.no_grad():
            return float(algo.q.critic(batch.obs, algo.acting.sample_differentiable(batch.obs, rng(2))).mean())

    before, generator = worth(), rng()
    for _ in range(20):
        algo._step(batch, True, generator)
    assert worth() > before + 1e-3


@pytest.mark.parametrize("bad", [{"alpha": -1.0}, {"gamma": -0.1}, {"reward_scale": 0.0}])
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        DQLConfig(**bad)


def test_other_than_two_heads_are_refused() -> None:
    policy = make_policy()
    with pytest.raises(ConfigError, match="3 heads"):
        DQL(policy, make_critic(policy, heads=3))
