"""Implicit Q-learning with a diffusion policy, and the rule it acts by."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from robopo.algos.idql import IDQL, Exploration, IDQLConfig
from robopo.errors import ConfigError
from robopo.train.metrics import to_scalars
from tests.unit.algos.off_policy_kit import (
    DIFFUSION,
    FLOW,
    check_first_updates,
    check_resume,
    check_warmup,
    filled,
    make_critic,
    make_policy,
    make_value,
    rng,
)

SMALL = IDQLConfig(batch_size=16, replay_ratio=4.0, actor_lr=1e-3, candidates=4)


def make(config: IDQLConfig = SMALL, process=DIFFUSION) -> IDQL:
    policy = make_policy(process)
    return IDQL(policy, make_critic(policy), make_value(policy), config)


@pytest.mark.parametrize("process", [DIFFUSION, FLOW])
def test_the_first_update_moves_every_network(process) -> None:
    algo = make(process=process)
    check_first_updates(algo, algo.policy.net, [algo.q.critic, algo.value, algo.q.target.module])


def test_warmup_spares_the_policy() -> None:
    check_warmup(lambda: make(dataclasses.replace(SMALL, critic_warmup_iterations=1)), lambda algo: algo.policy.net)


def test_resume_is_exact() -> None:
    check_resume(make, lambda a: {"policy": a.policy, "critic": a.q.critic, "value": a.value})


def test_one_step_by_hand() -> None:
    """V regresses on the target critic's smaller head, Q on r + gamma V(s') of the new V."""
    algo = make(dataclasses.replace(SMALL, reward_scale=3.0, gamma=0.5))
    buffer = filled(algo)
    batch = buffer.sample(16, rng(1))
    with torch.no_grad():
        target_q = algo.q.target.module(batch.obs, batch.action).amin(0)
        error = target_q - algo.value(batch.obs)
        v_loss = (torch.where(error < 0, 0.2, 0.8) * error.square()).mean()
        q = algo.q.critic(batch.obs, batch.action)
    found = algo._step(batch, True, rng())
    assert float(found[2]) == pytest.approx(float(v_loss), rel=1e-5)
    with torch.no_grad():
        y = 3.0 * batch.reward + 0.5 * (~batch.terminated) * algo.value(batch.next_obs)
    assert float(found[1]) == pytest.approx(float((q - y).square().mean(1).sum()), rel=1e-5)


class PlaneQ:
    """Q = the first number of the action, for every head."""

    def each_of(self, obs: dict[str, Tensor], actions: Tensor) -> Tensor:
        return actions[..., 0, 0].expand(2, -1, -1)


def candidates(algo: IDQL, first: list[float]) -> None:
    """Let ``algo`` propose chunks whose first numbers are ``first``, one observation."""
    actions = torch.zeros(len(first), 1, 3, 2)
    actions[:, 0, 0, 0] = torch.tensor(first)
    algo.acting.propose = lambda obs, *, deterministic, generator: actions  # type: ignore[method-assign]
    algo.acting.judge = lambda obs, given: PlaneQ().each_of(obs, given).amin(0)  # type: ignore[method-assign]


def drawn_shares(exploration: Exploration, first: list[float], draws: int = 3000) -> list[float]:
    algo = make(dataclasses.replace(SMALL, exploration=exploration, temperature=0.5))
    candidates(algo, first)
    algo.value = lambda obs: torch.zeros(1)  # type: ignore[assignment]
    generator = rng()
    chosen = torch.stack([algo.explore({}, generator)[1][0, 0, 0] for _ in range(draws)])
    return [float((chosen == value).float().mean()) for value in first]


def test_exploration_weighs_in_two_levels() -> None:
    """0.7 where Q > V, 0.3 elsewhere: how much better doesn't matter."""
    shares = drawn_shares(Exploration.TWO_LEVEL, [0.9, 0.1, -0.5, -0.6])
    assert shares == pytest.approx([0.35, 0.35, 0.15, 0.15], abs=0.04)


def test_exploration_by_boltzmann_weighs_by_value() -> None:
    shares = drawn_shares(Exploration.BOLTZMANN, [0.5, 0.0])
    assert shares == pytest.approx([0.731, 0.269], abs=0.04)


def test_greedy_exploration_takes_the_best() -> None:
    assert drawn_shares(Exploration.GREEDY, [0.1, 0.9, 0.3], draws=5) == [0.0, 1.0, 0.0]


def test_evaluation_takes_the_best_whatever_the_exploration() -> None:
    algo = make()
    candidates(algo, [0.1, 0.9, 0.3])
    assert float(algo.acting.act({})[0, 0, 0]) == pytest.approx(0.9, abs=1e-5)


def test_the_slow_critic_judges() -> None:
    algo = make()
    assert algo.acting.critic is algo.q.target.module


def test_a_bigger_expectile_is_more_optimistic() -> None:
    def fitted(expectile: float) -> float:
        algo = make(dataclasses.replace(SMALL, expectile=expectile, gamma=0.0, tau=1.0, batch_size=32))
        buffer = filled(algo)
        return to_scalars(algo.update(buffer, updates=60, generator=rng()))["mean_v"]

    assert fitted(0.95) > fitted(0.5)


@pytest.mark.parametrize(
    "bad", [{"expectile": 1.0}, {"candidates": 0}, {"temperature": 0.0}, {"tau": 0.0}, {"expectile_weight": 0.0}]
)
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        IDQLConfig(**bad)


def test_one_head_is_refused() -> None:
    policy = make_policy()
    with pytest.raises(ConfigError, match="2 or more"):
        IDQL(policy, make_critic(policy, heads=1), make_value(policy))
