"""RLPD on a point mass with a sparse reward: twenty demonstrations show it where the reward is."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from robopo.algos.off_policy import Explorer
from robopo.algos.rlpd import RLPD, RLPDConfig
from robopo.critics.q_ensemble import QConfig, QEnsemble
from robopo.data.demo import DemoData, Episode
from robopo.data.replay import ReplayBuffer, demo_transitions, seed_with
from robopo.policies.base import PolicySpec
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.tanh_gaussian import TanhGaussianConfig, TanhGaussianPolicy
from robopo.rollout.collector import Collector
from tests.helpers.point_mass import PointMass

SPEC = PolicySpec(
    obs={"state": 2, "environment_state": 2},
    action_dim=2,
    action_names=("vx", "vy"),
    horizon=1,
    action_steps=1,
    control_hz=10.0,
    action_mode="velocity",
)
CONFIG = RLPDConfig(
    gamma=0.95,
    actor_lr=3e-3,
    critic_lr=3e-3,
    alpha_lr=3e-3,
    initial_alpha=0.01,
    entropy_backup=False,
    batch_size=64,
    updates_per_decision=0.25,
    critic_updates=1,
)


def demonstrations(episodes: int) -> DemoData:
    """A noisy teacher; every episode ends in the goal."""
    rng, sim = np.random.default_rng(0), PointMass(episodes)
    obs, alive = sim.reset(7), np.ones(episodes, bool)
    rows: list[list[tuple[np.ndarray, ...]]] = [[] for _ in range(episodes)]
    while alive.any():
        action = np.clip(5.0 * (obs["environment_state"] - obs["state"]) + rng.normal(0.0, 0.2, (episodes, 2)), -1, 1)
        for env in np.flatnonzero(alive):
            rows[env].append((obs["state"][env].copy(), obs["environment_state"][env].copy(), action[env]))
        step = sim.step(action)
        alive &= ~(step.terminated | step.truncated)
        obs = step.obs
    columns = [[np.stack(column) for column in zip(*episode, strict=True)] for episode in rows]
    return DemoData.from_episodes(
        [Episode({"state": s, "environment_state": g}, a.astype(np.float32), True) for s, g, a in columns],
        control_hz=10.0,
    )


def success_rate(policy: TanhGaussianPolicy, episodes: int) -> float:
    sim = PointMass(episodes)
    collector = Collector(sim, _Mean(policy))
    collector.reset(99)
    collector.collect(sim.spec.max_episode_steps, torch.Generator())
    first = {}
    for episode in collector.stats.episodes:
        first.setdefault(episode.env, episode.success)
    return sum(first.values()) / episodes


class _Mean:
    """Acts without noise where a collector would explore."""

    def __init__(self, policy: TanhGaussianPolicy) -> None:
        self.policy, self.spec = policy, policy.spec

    def sample_chain(self, obs, *, generator):
        _, chain = self.policy.sample_chain(obs, generator=generator)
        return self.policy.act(obs), chain

    def reset(self) -> None: ...


def trained(seed: int, episodes: int) -> float:
    """Success after 20 iterations of 320 decisions and 80 updates, with that many demonstrations."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    sizes = {"state": 2, "environment_state": 2, "action": 2}
    normalizer = MinMaxNormalizer({key: (-torch.ones(n), torch.ones(n)) for key, n in sizes.items()})
    policy = TanhGaussianPolicy(SPEC, normalizer, TanhGaussianConfig(hidden=(32, 32)))
    critic = QEnsemble(SPEC.obs, 1, 1, 2, QConfig(heads=5, hidden=(32, 32), layer_norm=True), normalizer)
    demos, buffer = ReplayBuffer(SPEC, 1000), ReplayBuffer(SPEC, 10_000)
    if episodes:
        data = demonstrations(episodes)
        seed_with(demos, demo_transitions(data, SPEC, lambda action: normalizer.apply("action", action)))
    algorithm = RLPD(policy, critic, demos, CONFIG)
    collector = Collector(PointMass(16), Explorer(algorithm))
    collector.reset(seed)
    for _ in range(20):
        buffer.add_rollout(collector.collect(20, generator))
        algorithm.update(buffer, updates=algorithm.num_updates(20 * 16), generator=generator)
    return success_rate(policy, 200)


@pytest.mark.slow
def test_it_learns_from_sparse_reward_with_demonstrations() -> None:
    """Measured over seeds 0 to 2: success 1.0, .66, .76; without the demonstrations .14, .0, .11."""
    assert trained(0, episodes=20) > 0.4
