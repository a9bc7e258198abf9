"""The baselines that improve a weak clone on a point mass within seconds.

The Q-gradient methods (DQL, DIPO, QSM) don't, in this little time: they first unlearn the clone. Their learning is
checked on a problem of one decision, in tests/unit/algos/test_off_policy_bandit.py.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

import pytest
import torch

from robopo.algos.dawr import DAWR, DAWRConfig
from robopo.algos.drwr import DRWR, DRWRConfig
from robopo.algos.idql import IDQL, IDQLConfig
from robopo.algos.off_policy import Explorer
from robopo.critics.q_ensemble import QConfig, QEnsemble
from robopo.critics.value import ValueNet
from robopo.data.replay import ReplayBuffer
from robopo.policies.chunk_policy import ChunkPolicy
from robopo.rollout.collector import Collector
from tests.e2e.test_point_mass import MAX_STEPS, SPEC, clone, success_rate
from tests.helpers.point_mass import PointMass

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module", autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def cloned() -> ChunkPolicy:
    policy = clone(seed=1)
    assert 0.35 < success_rate(policy) < 0.65
    return policy


def value(policy: ChunkPolicy) -> ValueNet:
    return ValueNet(SPEC.obs, SPEC.obs_steps, (64, 64, 64), policy.normalizer)


def collector(policy: Any) -> Collector:
    made = Collector(PointMass(64, max_episode_steps=MAX_STEPS), policy)
    made.reset(1)
    return made


def learn_on_policy(algorithm: Any, policy: ChunkPolicy, iterations: int) -> float:
    rollouts, generator = collector(policy), torch.Generator().manual_seed(1)
    for _ in range(iterations):
        algorithm.update(rollouts.collect(8, generator), generator=generator)
    return success_rate(policy)


def test_reward_weighted_regression_improves_the_clone(cloned: ChunkPolicy) -> None:
    policy = copy.deepcopy(cloned)
    config = DRWRConfig(gamma=0.7, actor_lr=5e-4, batch_size=250, epochs=8, beta=3.0)
    assert learn_on_policy(DRWR(policy, config), policy, 40) > 0.7


def test_advantage_weighted_regression_improves_the_clone(cloned: ChunkPolicy) -> None:
    policy = copy.deepcopy(cloned)
    torch.manual_seed(1)
    ratios = {"replay_ratio": 8.0, "critic_replay_ratio": 8.0, "buffer_steps": 24}
    config = DAWRConfig(gamma=0.7, actor_lr=5e-4, batch_size=250, beta=3.0, **ratios)
    assert learn_on_policy(DAWR(policy, value(policy), config), policy, 30) > 0.65


def test_the_best_of_several_samples_is_no_worse_than_the_clone(cloned: ChunkPolicy) -> None:
    policy = copy.deepcopy(cloned)
    torch.manual_seed(1)
    critic = QEnsemble(SPEC.obs, 1, SPEC.action_steps, 2, QConfig(hidden=(64, 64, 64)), policy.normalizer)
    config = IDQLConfig(gamma=0.99, actor_lr=1e-4, batch_size=256, replay_ratio=32.0, tau=0.01)
    algorithm = IDQL(policy, critic, value(policy), config)
    buffer, generator = ReplayBuffer(SPEC, 10_000), torch.Generator().manual_seed(1)
    rollouts = collector(Explorer(algorithm))
    for _ in range(8):
        batch = rollouts.collect(8, generator)
        buffer.add_rollout(batch)
        algorithm.update(buffer, updates=algorithm.num_updates(batch.reward.numel()), generator=generator)
    acting: Any = algorithm.acting
    assert success_rate(acting) > 0.5
