"""Q-score matching: the noise that is aimed at, and for which policies it exists."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from robopo.algos.qsm import QSM, QSMConfig
from robopo.errors import ConfigError
from robopo.processes.base import DiffusionConfig, Prediction
from tests.unit.algos.off_policy_kit import (
    FLOW,
    check_first_updates,
    check_resume,
    check_warmup,
    filled,
    make_critic,
    make_policy,
    rng,
)

SMALL = QSMConfig(batch_size=16, replay_ratio=4.0, actor_lr=1e-3)


def make(config: QSMConfig = SMALL) -> QSM:
    policy = make_policy()
    return QSM(policy, make_critic(policy), config)


def test_the_first_update_moves_every_network() -> None:
    algo = make()
    check_first_updates(algo, algo.acting.net, [algo.q.critic, algo.q.target.module])


def test_warmup_spares_the_policy() -> None:
    check_warmup(lambda: make(dataclasses.replace(SMALL, critic_warmup_iterations=1)), lambda algo: algo.acting.net)


def test_resume_is_exact() -> None:
    check_resume(make, lambda a: {"policy": a.acting, "critic": a.q.critic})


def test_the_loss_is_the_distance_to_the_scaled_gradient_at_the_noised_action() -> None:
    algo = make(dataclasses.replace(SMALL, grad_coef=3.0))
    batch = filled(algo).sample(16, rng(1))
    found, size = algo.actor_loss(batch, rng())
    generator = rng()
    process = algo.acting.process
    level = process.draw_levels(16, generator)
    x = process.add_noise(batch.action, torch.randn(batch.action.shape, generator=generator), level)
    x.requires_grad_(True)
    (gradient,) = torch.autograd.grad(algo.q.critic(batch.obs, x).mean(0).sum(), x)
    noise = algo.acting.net(x, level, algo.acting.encode(batch.obs))
    expected = (noise + 3.0 * gradient)[:, :2].square().mean()  # two of three rows run
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(size, gradient.flatten(1).norm(dim=1).mean())


def test_the_critic_gets_no_gradient_from_the_policys_loss() -> None:
    algo = make()
    loss, _ = algo.actor_loss(filled(algo).sample(16, rng(1)), rng())
    loss.backward()
    assert all(parameter.grad is None for parameter in algo.q.critic.parameters())


def test_policies_without_a_score_are_refused() -> None:
    flow = make_policy(FLOW)
    with pytest.raises(ConfigError, match=r"flow.*diffusion_mlp"):
        QSM(flow, make_critic(flow))
    clean = make_policy(DiffusionConfig(num_train_steps=5, prediction=Prediction.CLEAN))
    with pytest.raises(ConfigError, match=r"prediction=clean.*prediction=noise"):
        QSM(clean, make_critic(clean))


@pytest.mark.parametrize("bad", [{"grad_coef": 0.0}, {"max_grad_norm": 0.0}])
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        QSMConfig(**bad)
