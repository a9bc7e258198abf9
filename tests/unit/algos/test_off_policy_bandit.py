"""One decision per episode, with a known best action: the off-policy methods must find it from random ones.

State g in [-0.6, 0.6]^2, chunk a, reward -mean (a - g)^2 over the executed rows. The buffer's actions ignore g.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

from robopo.algos.dipo import DIPO, DIPOConfig
from robopo.algos.dql import DQL, DQLConfig
from robopo.algos.idql import IDQL, Exploration, IDQLConfig
from robopo.algos.qsm import QSM, QSMConfig
from robopo.data.replay import ReplayBuffer
from tests.unit.algos.off_policy_kit import DIFFUSION, FLOW, SPEC, make_critic, make_policy, make_value, rng

N = 2000


def states(n: int, seed: int) -> dict[str, Tensor]:
    goal = 1.2 * torch.rand(n, 1, 2, generator=rng(seed)) - 0.6
    return {"state": goal, "environment_state": torch.zeros(n, 1, 2)}


def reward(obs: dict[str, Tensor], action: Tensor) -> Tensor:
    return -(action[:, :2] - obs["state"]).square().mean((1, 2))


def bandit() -> ReplayBuffer:
    buffer = ReplayBuffer(SPEC, N)
    obs = states(N, 1)
    action = (0.5 * torch.randn(N, 3, 2, generator=rng(2))).clamp(-1, 1)
    ends = torch.ones(N, dtype=torch.bool)
    buffer.add(obs=obs, action=action, reward=reward(obs, action), terminated=ends, next_obs=obs)
    return buffer


def idql(process: Any) -> IDQL:
    policy = make_policy(process)
    config = IDQLConfig(batch_size=128, actor_lr=1e-3, tau=0.05, candidates=16, exploration=Exploration.GREEDY)
    return IDQL(policy, make_critic(policy, width=64), make_value(policy), config)


def dipo(process: Any) -> DIPO:
    policy = make_policy(process)
    config = DIPOConfig(batch_size=128, actor_lr=1e-3, tau=0.02, action_lr=2e-2)
    return DIPO(policy, make_critic(policy, width=64), config)


def dql(process: Any) -> DQL:
    policy = make_policy(process)
    config = DQLConfig(batch_size=128, actor_lr=1e-3, tau=0.05)
    return DQL(policy, make_critic(policy, width=64), config)


def qsm(process: Any) -> QSM:
    policy = make_policy(process)
    config = QSMConfig(batch_size=128, actor_lr=1e-3, tau=0.05)
    return QSM(policy, make_critic(policy, width=64), config)


def mean_reward(algorithm: Any) -> float:
    obs = states(256, 5)
    return float(reward(obs, algorithm.explore(obs, rng(6))[1]).mean())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("make", "process", "updates", "share"),
    [
        (idql, DIFFUSION, 300, 0.4),
        (dipo, DIFFUSION, 300, 0.5),
        (dql, DIFFUSION, 300, 0.2),
        (dql, FLOW, 300, 0.2),
        (qsm, DIFFUSION, 300, 0.8),
    ],
    ids=["idql", "dipo", "dql", "dql_flow", "qsm"],
)
def test_the_loss_of_random_actions_is_cut(
    make: Callable[[Any], Any], process: Any, updates: int, share: float
) -> None:
    """``share``: of the buffer's mean loss that may be left."""
    algorithm, buffer = make(process), bandit()
    before = buffer.rows(torch.arange(N)).reward.mean().item()
    algorithm.update(buffer, updates=updates, generator=rng())
    assert mean_reward(algorithm) > share * before
