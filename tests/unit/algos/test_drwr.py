"""Reward-weighted regression: which decisions count, and how much."""

from __future__ import annotations

import copy
import dataclasses
import logging
import math

import pytest
import torch

from robopo.algos.denoising import denoising_errors
from robopo.algos.drwr import DRWR, DRWRConfig
from robopo.errors import ConfigError
from robopo.train.metrics import to_scalars
from tests.unit.algos.off_policy_kit import DIFFUSION, FLOW, make_policy, rng, rollout, same, weights

SMALL = DRWRConfig(batch_size=16, epochs=2, actor_lr=1e-3)


@pytest.mark.parametrize("process", [DIFFUSION, FLOW])
def test_the_first_update_moves_the_policy(process) -> None:
    policy = make_policy(process)
    algo, batch, before = DRWR(policy, SMALL), rollout(policy), weights(policy.net)
    metrics = to_scalars(algo.update(batch, generator=rng()))
    assert not same(before, weights(policy.net))
    assert metrics["grad_norm"] > 0.0
    metrics |= to_scalars(algo.update(batch, generator=rng()))
    assert all(math.isfinite(value) for value in metrics.values())


def test_only_decisions_of_ended_episodes_count() -> None:
    """Decisions after the last end of an environment may hold anything: the update doesn't see them."""
    policy, twin = make_policy(), make_policy()
    batch = rollout(policy, 6)
    done = batch.terminated | batch.truncated
    ended = done.flip(0).cumsum(0).flip(0) > 0
    assert 0.0 < float(ended.float().mean()) < 1.0
    changed = dataclasses.replace(batch, reward=torch.where(ended, batch.reward, 100.0))
    metrics = DRWR(policy, SMALL).update(batch, generator=rng())
    DRWR(twin, SMALL).update(changed, generator=rng())
    assert same(weights(policy.net), weights(twin.net))
    assert float(metrics.used) == pytest.approx(float(ended.float().mean()))


def test_weights_follow_the_standardised_return() -> None:
    """One update on the whole batch is the gradient of the weighted error, worked out beside."""
    config = DRWRConfig(batch_size=1000, epochs=1, beta=0.7, max_weight=2.0, gamma=0.9)
    policy = make_policy()
    batch = rollout(policy, 6)
    twin = copy.deepcopy(policy)
    metrics = DRWR(policy, config).update(batch, generator=rng())
    T, E = batch.reward.shape
    rows, returns = [], []
    for e in range(E):
        for t in range(T):
            total, scale = 0.0, 1.0
            for s in range(t, T):
                total += scale * float(batch.reward[s, e])
                scale *= 0.9
                if batch.terminated[s, e] or batch.truncated[s, e]:
                    rows.append((t * E + e, total))
                    break
    rows.sort()
    returns = torch.tensor([total for _, total in rows])
    weight = (0.7 * (returns - returns.mean()) / (returns.std(correction=0) + 1e-3)).exp().clamp(max=2.0)
    index = torch.tensor([n for n, _ in rows])
    generator = rng()
    order = torch.randperm(len(index), generator=generator)
    obs = {key: value.flatten(0, 1)[index][order] for key, value in batch.obs.items()}
    error = denoising_errors(twin, obs, batch.latents[:, :, -1].flatten(0, 1)[index][order], generator)
    assert float(metrics.actor_loss) == pytest.approx(float((weight[order] * error.detach()).mean()), rel=1e-4)
    assert float(metrics.mean_weight) == pytest.approx(float(weight.mean()), rel=1e-4)


def test_without_an_end_nothing_changes_and_the_log_says_so(caplog: pytest.LogCaptureFixture) -> None:
    policy = make_policy()
    batch, before = rollout(policy, 2, max_episode_steps=50, radius=0.01), weights(policy.net)
    with caplog.at_level(logging.WARNING):
        metrics = to_scalars(DRWR(policy, SMALL).update(batch, generator=rng()))
    assert same(before, weights(policy.net))
    assert metrics["used"] == 0.0
    assert "raise num_decisions" in caplog.text


def test_equal_returns_are_plain_cloning() -> None:
    policy = make_policy()
    batch = rollout(policy, radius=0.0)
    metrics = DRWR(policy, SMALL).update(batch, generator=rng())
    assert float(metrics.mean_weight) == 1.0


def test_resume_is_exact() -> None:
    policy = make_policy()
    algo, batch, generator = DRWR(policy, SMALL), rollout(policy), rng()
    algo.update(batch, generator=generator)
    state, net, where = copy.deepcopy((algo.state_dict(), policy.state_dict(), generator.get_state()))
    algo.update(batch, generator=generator)
    other = make_policy(seed=9)
    resumed, restored = DRWR(other, SMALL), rng()
    other.load_state_dict(net)
    resumed.load_state_dict(state)
    restored.set_state(where)
    resumed.update(batch, generator=restored)
    assert same(weights(policy.net), weights(other.net))


@pytest.mark.parametrize("bad", [{"beta": 0.0}, {"max_weight": 0.5}, {"epochs": 0}, {"gamma": 1.1}, {"actor_lr": -1.0}])
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        DRWRConfig(**bad)


def test_a_partly_frozen_policy_is_refused() -> None:
    policy = make_policy()
    policy.begin_finetuning(2)
    with pytest.raises(ConfigError, match="ft_steps=5"):
        DRWR(policy, SMALL)
    whole = make_policy()
    whole.begin_finetuning(5)
    DRWR(whole, SMALL)
