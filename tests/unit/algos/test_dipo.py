"""Actions that climb Q, are written back, and are cloned; a slow network acts."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from robopo.algos.dipo import DIPO, DIPOConfig
from robopo.algos.off_policy import Explorer
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
    rng,
    same,
    weights,
)

SMALL = DIPOConfig(batch_size=16, replay_ratio=4.0, actor_lr=1e-3)


def make(config: DIPOConfig = SMALL, process=DIFFUSION) -> DIPO:
    policy = make_policy(process)
    return DIPO(policy, make_critic(policy), config)


@pytest.mark.parametrize("process", [DIFFUSION, FLOW])
def test_the_first_update_moves_every_network(process) -> None:
    algo = make(process=process)
    check_first_updates(algo, algo.learner.net, [algo.q.critic, algo.acting.net])


def test_warmup_spares_the_policy() -> None:
    check_warmup(lambda: make(dataclasses.replace(SMALL, critic_warmup_iterations=1)), lambda algo: algo.learner.net)


def test_resume_is_exact() -> None:
    check_resume(make, lambda a: {"policy": a.acting, "critic": a.q.critic})


def test_the_slow_network_acts() -> None:
    """Exploration, targets and the exported policy use the copy that follows, not the network that learns."""
    algo = make()
    obs = {key: torch.zeros(3, 1, 2) for key in algo.spec.obs}
    before = algo.explore(obs, rng())[1]
    with torch.no_grad():
        for parameter in algo.learner.net.parameters():
            parameter.add_(1.0)
    assert algo.explore(obs, rng())[1].equal(before)
    slow = weights(algo.acting.net)
    algo.actor_target.update()
    for old, new in zip(slow, algo.acting.net.parameters(), strict=True):
        torch.testing.assert_close(new, old + 0.005)
    assert not algo.explore(obs, rng())[1].equal(before)
    assert Explorer(algo).sample_chain(obs, generator=rng())[1].latents[:, 0].equal(algo.explore(obs, rng())[1])


class Slope(nn.Module):
    """Q = slope . action over the executed rows, both heads."""

    def __init__(self, slope: Tensor) -> None:
        super().__init__()
        self.slope = slope

    def encode(self, obs: dict[str, Tensor]) -> Tensor:
        return obs["state"].flatten(1)

    def score(self, cond: Tensor, action: Tensor) -> Tensor:
        return (action[:, :2] * self.slope).sum((1, 2)).expand(2, -1)


def test_actions_climb_by_adam_steps_and_rows_that_never_run_stay() -> None:
    """Under a constant gradient each Adam step is the learning rate, whatever the gradient's size."""
    algo = make(dataclasses.replace(SMALL, action_steps=10, action_lr=1e-3))
    algo.q.critic = Slope(torch.tensor([[1.0, -5.0], [0.2, 0.0]]))  # type: ignore[assignment]
    action = torch.zeros(4, 3, 2)
    moved = algo.improve({"state": torch.zeros(4, 1, 2)}, action)
    expected = torch.tensor([[1e-2, -1e-2], [1e-2, 0.0], [0.0, 0.0]]).expand(4, 3, 2)
    torch.testing.assert_close(moved, expected, rtol=5e-3, atol=1e-6)
    assert bool((action == 0).all())


def test_actions_stay_normalised() -> None:
    algo = make(dataclasses.replace(SMALL, action_lr=0.5))
    algo.q.critic = Slope(torch.ones(2, 2))  # type: ignore[assignment]
    moved = algo.improve({"state": torch.zeros(2, 1, 2)}, torch.full((2, 3, 2), 0.9))
    assert float(moved.max()) == 1.0


def test_improved_actions_are_written_back_and_worth_more() -> None:
    algo = make(dataclasses.replace(SMALL, action_lr=1e-2))
    buffer = filled(algo)
    index = torch.arange(len(buffer))
    before, start = buffer.rows(index), buffer.improved_actions(index)
    algo.update(buffer, updates=10, generator=rng())
    after, better = buffer.rows(index), buffer.improved_actions(index)
    assert after.action.equal(before.action)  # rewards belong to what was done, and Q learns from that
    changed = (better != start).any(-1).any(-1)
    assert float(changed.float().mean()) > 0.5
    q = algo.q.critic
    inside = start.abs().amax((1, 2)) <= 1.0  # the others were clamped as well
    gain = (q(before.obs, better) - q(before.obs, start)).amin(0)[changed & inside]
    assert gain.mean().item() > 0.0


def test_nothing_is_written_during_warmup() -> None:
    algo = make(dataclasses.replace(SMALL, critic_warmup_iterations=1))
    buffer = filled(algo)
    index = torch.arange(len(buffer))
    before = buffer.improved_actions(index)
    metrics = to_scalars(algo.update(buffer, updates=3, generator=rng()))
    assert buffer.improved_actions(index).equal(before)
    assert metrics["moved"] == 0.0


def test_the_policy_given_is_the_one_that_acts() -> None:
    policy = make_policy()
    algo = DIPO(policy, make_critic(policy), SMALL)
    assert algo.acting is policy
    assert same(weights(algo.learner.net), weights(policy.net))


@pytest.mark.parametrize("bad", [{"action_steps": 0}, {"action_lr": 0.0}, {"action_grad_norm": 0.0}, {"tau": 2.0}])
def test_bad_settings_are_refused(bad: dict) -> None:
    with pytest.raises(ConfigError, match=next(iter(bad))):
        DIPOConfig(**bad)
