"""Cal-QL: what the penalty and its calibration do, exact resume, and the offline phase."""

from __future__ import annotations

import math

import pytest
import torch

from robopo.algos.cal_ql import CalQL, CalQLConfig
from robopo.errors import ConfigError, DataError
from robopo.types import RolloutBatch
from tests.unit.algos.off_policy_toy import critic, filled, full_state, load_full, make_obs, rng, same, soft_actor

CONFIG = CalQLConfig(batch_size=16, actor_lr=1e-2, critic_lr=1e-2, alpha_lr=1e-2, tau=0.1)


def make(seed: int = 0, config: CalQLConfig = CONFIG) -> CalQL:
    return CalQL(soft_actor(seed), critic(2, seed + 1), filled(24, 5, mc_return=True), config)


def modules(algorithm: CalQL) -> dict[str, torch.nn.Module]:
    return {"policy": algorithm.policy, "critic": algorithm.critic}


@pytest.mark.parametrize("mc_return", [True, False])
def test_two_updates_are_finite_and_move_everything(mc_return) -> None:
    algorithm = make()
    before = full_state(algorithm, modules(algorithm))
    for _ in range(2):
        metrics = algorithm.update(filled(mc_return=mc_return), updates=2, generator=rng())
        assert all(torch.isfinite(value) for value in metrics)
    after = full_state(algorithm, modules(algorithm))
    for part in ("policy", "critic"):
        for name, old in before["modules"][part].items():
            changes = not name.startswith("normalizer")
            assert torch.equal(old, after["modules"][part][name]) != changes, name


def test_resume_is_exact_from_weights_of_all_heads_and_targets() -> None:
    straight = make()
    generator = rng()
    straight.pretrain(updates=2, generator=generator)
    straight.update(filled(), updates=1, generator=generator)
    saved, state = full_state(straight, modules(straight)), generator.get_state()
    straight.update(filled(), updates=2, generator=generator)
    resumed, generator = make(seed=50), rng()
    load_full(resumed, modules(resumed), saved)
    generator.set_state(state)
    resumed.update(filled(), updates=2, generator=generator)
    assert same(full_state(straight, modules(straight)), full_state(resumed, modules(resumed)))
    assert resumed.step == 5


def test_the_offline_phase_is_an_update_without_own_experience() -> None:
    a, b = make(), make()
    a.pretrain(updates=2, generator=rng())
    b.update(filled(0), updates=2, generator=rng())
    assert a.step == b.step == 2
    assert not same(full_state(a, modules(a)), full_state(make(), modules(make())))


def test_penalty_holds_back_what_the_data_does_not_show() -> None:
    """Gap between Q of the data and Q of uniform actions after 150 offline steps, with and without the penalty."""
    gaps: dict[float, float] = {}
    for penalty in (0.0, 5.0):
        algorithm = make(config=CalQLConfig(batch_size=24, critic_lr=1e-2, penalty=penalty, gamma=0.0))
        algorithm.pretrain(updates=150, generator=rng())
        data = algorithm.demos.rows(torch.arange(24))
        uniform = torch.rand(20, 24, 1, 2, generator=rng(9)) * 2.0 - 1.0
        with torch.no_grad():
            of_data = algorithm.critic(data.obs, data.action).mean()
            gaps[penalty] = float(of_data - algorithm.critic.each_of(data.obs, uniform).mean())
    assert gaps[5.0] > gaps[0.0] + 0.5


def test_random_actions_are_weighted_by_their_log_density(monkeypatch) -> None:
    """Regression: with 0.5^d in place of d log 0.5 the log-sum-exp would be smaller by about d log 2."""
    algorithm = make(config=CalQLConfig(random_actions=1, policy_actions=1))
    with torch.no_grad():
        for parameter in algorithm.critic.parameters():
            parameter.zero_()  # Q = 0 everywhere
    far = algorithm.policy.rsample

    def unlikely(cond, generator):
        drawn = far(cond, generator)
        return drawn._replace(log_prob=torch.full_like(drawn.log_prob, 50.0))  # weight e^-50

    monkeypatch.setattr(algorithm.policy, "rsample", unlikely)
    batch = filled(8, mc_return=True).sample(8, rng())
    batch.extras["mc_return"].fill_(-math.inf)
    penalty = algorithm._penalty(batch, torch.zeros(2, 8), rng())
    assert float(penalty.detach()) == pytest.approx(2 * 2 * math.log(2.0), rel=1e-5)  # 2 heads, d = 2


def test_target_takes_the_best_of_the_proposals() -> None:
    few, many = (make(config=CalQLConfig(target_actions=n, penalty=0.0, batch_size=8)) for n in (1, 200))
    batch = filled(64).sample(64, rng())
    with torch.no_grad():
        for algorithm in (few, many):
            for parameter in algorithm.critic.parameters():
                parameter.zero_()
            algorithm.target.module.linears[-1].bias.fill_(3.0)  # positive values: more proposals, larger targets
    losses = [float(algorithm._critic_step(batch, rng())[0]) for algorithm in (few, many)]
    assert losses[1] > losses[0]


def test_exploration_is_inside_the_bounds_and_updates_follow_decisions() -> None:
    algorithm = make()
    chunk, action = algorithm.explore(make_obs(6, rng()), rng())
    torch.testing.assert_close(chunk, algorithm.policy.normalizer.invert("action", action))
    assert action.abs().max() < 1.0
    assert algorithm.num_updates(10) == 10


def test_demonstrations_without_returns_are_refused() -> None:
    with pytest.raises(DataError, match="mc_return"):
        CalQL(soft_actor(), critic(2), filled(8), CONFIG)


@pytest.mark.parametrize(
    "wrong", [{"gamma": -0.1}, {"tau": 1.1}, {"penalty": -1.0}, {"random_actions": 0}, {"critic_lr": 0.0}]
)
def test_wrong_settings_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        CalQLConfig(**wrong)


def test_returns_of_own_episodes_are_known_where_they_ended() -> None:
    """Two environments, gamma .5: one episode ends after two decisions, a truncated one after three."""
    reward = torch.tensor([[1.0, 0.0], [2.0, 0.0], [4.0, 8.0]])
    no = torch.zeros(3, 2, dtype=torch.bool)
    terminated, truncated = no.clone(), no.clone()
    terminated[1, 0] = True
    truncated[2, 1] = True
    batch = RolloutBatch(
        obs={},
        next_obs={},
        latents=reward,
        log_probs=reward,
        reward=reward,
        terminated=terminated,
        truncated=truncated,
        first=no,
    )
    columns = make(config=CalQLConfig(gamma=0.5)).columns(batch)
    expected = torch.tensor([[2.0, 2.0], [2.0, 4.0], [-math.inf, 8.0]])
    assert torch.equal(columns["mc_return"], expected)


def test_reward_scale_reaches_targets_and_floors() -> None:
    """With Q = 0 everywhere and gamma 0 the loss is 2 heads times the mean of the scaled reward's square."""
    plain, scaled = (make(config=CalQLConfig(gamma=0.0, penalty=p, reward_scale=10.0)) for p in (0.0, 1.0))
    batch = filled(16, mc_return=True).sample(16, rng())
    with torch.no_grad():
        for parameter in [*plain.critic.parameters(), *scaled.critic.parameters()]:
            parameter.zero_()
    error, _, _ = plain._critic_step(batch, rng())
    assert float(error) == pytest.approx(2 * 100.0 * float(batch.reward.square().mean()), rel=1e-5)
    batch.extras["mc_return"].fill_(1.0)
    high = scaled._penalty(batch, torch.zeros(2, 16), rng()).detach()
    batch.extras["mc_return"].fill_(-math.inf)
    low = scaled._penalty(batch, torch.zeros(2, 16), rng()).detach()
    assert high > low + 2 * 5.0  # the floors are 10
