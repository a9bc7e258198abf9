"""Advantage-weighted regression, and three faults of the published baseline."""

from __future__ import annotations

import copy
import dataclasses
import math

import pytest
import torch
from torch import Tensor, nn

from robopo.algos.dawr import DAWR, DAWRConfig
from robopo.errors import ConfigError
from robopo.train.metrics import to_scalars
from robopo.types import RolloutBatch
from tests.unit.algos.off_policy_kit import DIFFUSION, FLOW, make_policy, make_value, rng, rollout, same, weights

SMALL = DAWRConfig(batch_size=16, replay_ratio=4.0, critic_replay_ratio=4.0, actor_lr=1e-3)


def make(config: DAWRConfig = SMALL, process=DIFFUSION) -> tuple[DAWR, RolloutBatch]:
    policy = make_policy(process)
    return DAWR(policy, make_value(policy), config), rollout(policy)


@pytest.mark.parametrize("process", [DIFFUSION, FLOW])
def test_the_first_update_moves_both_networks(process) -> None:
    algo, batch = make(process=process)
    before = weights(algo.policy.net), weights(algo.critic)
    metrics = to_scalars(algo.update(batch, generator=rng()))
    assert not same(before[0], weights(algo.policy.net))
    assert not same(before[1], weights(algo.critic))
    metrics |= to_scalars(algo.update(batch, generator=rng()))
    assert all(math.isfinite(value) for value in metrics.values())
    assert metrics["buffer"] == 2 * 8 * 6


class Position(nn.Module):
    """V(s): x of the position, with a parameter that changes nothing; counts who asked."""

    def __init__(self) -> None:
        super().__init__()
        self.nothing = nn.Parameter(torch.zeros(()))
        self.seen: list[Tensor] = []

    def forward(self, obs: dict[str, Tensor]) -> Tensor:
        self.seen.append(obs["state"][:, 0, 0])
        return obs["state"][:, 0, 0] + 0.0 * self.nothing


def numbered(T: int, E: int) -> RolloutBatch:
    """State x = number of the decision, next x = that plus 100, reward 1, no end."""
    number = torch.arange(float(T * E)).view(T, E, 1, 1)
    obs = {"state": torch.cat([number, number], -1), "environment_state": torch.zeros(T, E, 1, 2)}
    flag = torch.zeros(T, E, dtype=torch.bool)
    latents = torch.zeros(T, E, 1, 3, 2)
    next_obs = obs | {"state": obs["state"] + 100.0}
    return RolloutBatch(obs, next_obs, latents, torch.zeros(T, E, 0), torch.ones(T, E), flag, flag, flag)


def test_the_critic_learns_from_every_environment() -> None:
    """The published code drew indices below T from T * E rows: it saw the oldest 1/E of its data."""
    critic = Position()
    algo = DAWR(make_policy(), critic, dataclasses.replace(SMALL, critic_replay_ratio=400.0, replay_ratio=1.0))
    algo.update(numbered(4, 5), generator=rng())
    drawn = torch.cat(critic.seen[2:-2])  # the first and last two passes are the targets'
    assert set(drawn.tolist()) == set(range(20))


def test_targets_use_the_configured_discount_and_the_true_last_observation() -> None:
    """By hand, lambda 0: A = r + gamma V(s') - V(s) = 1 + 0.5 (x + 100) - x, in the last row as in the others."""
    algo = DAWR(make_policy(), Position(), dataclasses.replace(SMALL, gamma=0.5, lam=0.0))
    algo._remember(numbered(3, 2))
    x = torch.arange(6.0).view(3, 2)
    torch.testing.assert_close(algo.targets().advantage, 1.0 + 0.5 * (x + 100.0) - x)
    # lambda 1: row 2 as before, row 1 adds 0.5 of row 2, row 0 adds 0.5 of row 1
    algo = DAWR(make_policy(), Position(), dataclasses.replace(SMALL, gamma=0.5, lam=1.0))
    algo._remember(numbered(3, 1))
    delta = [51.0 - 0.0, 51.5 - 1.0, 52.0 - 2.0]
    expected = [delta[0] + 0.5 * (delta[1] + 0.5 * delta[2]), delta[1] + 0.5 * delta[2], delta[2]]
    torch.testing.assert_close(algo.targets().advantage[:, 0], torch.tensor(expected))


def test_a_new_episode_after_a_dropped_one_leaks_nothing_back() -> None:
    first, second = numbered(2, 1), numbered(2, 1)
    opens = dataclasses.replace(second, first=torch.tensor([[True], [False]]), reward=torch.full((2, 1), 1000.0))
    algo = DAWR(make_policy(), Position(), dataclasses.replace(SMALL, gamma=1.0, lam=1.0))
    algo._remember(first)
    alone = algo.targets().advantage
    algo._remember(opens)
    torch.testing.assert_close(algo.targets().advantage[:2], alone)


def test_the_buffer_forgets_the_oldest_decisions() -> None:
    algo = DAWR(make_policy(), Position(), dataclasses.replace(SMALL, buffer_steps=3))
    algo._remember(numbered(2, 2))
    algo._remember(numbered(2, 2))
    assert algo._rows["obs.state"][:, 0, 0, 0].tolist() == [2, 0, 2]


def test_targets_are_frozen_while_the_critic_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    algo, batch = make()
    algo._remember(batch)
    expected = algo.targets().returns.flatten()
    algo._rows = {}
    seen: list[Tensor] = []
    step = algo._critic_step
    monkeypatch.setattr(
        algo, "_critic_step", lambda returns, index: seen.append(returns.clone()) or step(returns, index)
    )
    algo.update(batch, generator=rng())
    assert len(seen) == 12
    assert all(returns.equal(expected) for returns in seen)
    assert not algo.targets().returns.flatten().allclose(expected)  # recomputed ones would have moved


def test_weights_are_standardised_and_capped() -> None:
    algo, batch = make(dataclasses.replace(SMALL, max_weight=3.0))
    metrics = to_scalars(algo.update(batch, generator=rng()))
    assert metrics["mean_weight"] <= 3.0
    assert 0.0 < metrics["capped"] < 1.0


def test_resume_is_exact() -> None:
    algo, batch = make()
    generator = rng()
    algo.update(batch, generator=generator)
    saved = copy.deepcopy((algo.state_dict(), algo.policy.state_dict(), algo.critic.state_dict()))
    where = generator.get_state()
    algo.update(batch, generator=generator)
    other, _ = make()
    other.policy.load_state_dict(saved[1])
    other.critic.load_state_dict(saved[2])
    other.load_state_dict(saved[0])
    restored = rng()
    restored.set_state(where)
    other.update(batch, generator=restored)
    assert same(weights(algo.policy.net), weights(other.policy.net))
    assert same(weights(algo.critic), weights(other.critic))


@pytest.mark.parametrize("bad", [{"lam": 1.5}, {"buffer_steps": 0}, {"critic_replay_ratio": 0.0}, {"batch_size": 0}])
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        DAWRConfig(**bad)
