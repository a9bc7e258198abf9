"""IBRL: the critics that learn are those that choose, the cloned policy stays, and resume is exact."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from robopo.algos.ibrl import IBRL, IBRLConfig, Selection
from robopo.data.replay import ReplayBuffer
from robopo.errors import ConfigError
from tests.unit.algos.off_policy_toy import (
    SPEC,
    critic,
    filled,
    full_state,
    gaussian_actor,
    load_full,
    make_obs,
    rng,
    same,
)

CONFIG = IBRLConfig(batch_size=16, actor_lr=1e-2, critic_lr=1e-2, critic_updates=2)


class Constant:
    """A cloned policy that always does the same (physical units)."""

    spec = SPEC

    def __init__(self, value: float) -> None:
        self.value = value

    def act(self, obs, *, deterministic=True, generator=None):
        return torch.full((len(obs["state"]), 1, 2), self.value)


class Drawing(Constant):
    """A cloned policy that starts from noise even when it acts deterministically, as a diffusion does."""

    def act(self, obs, *, deterministic=True, generator=None):
        return self.value * torch.randn(len(obs["state"]), 1, 2, generator=generator)


def make(seed: int = 0, config: IBRLConfig = CONFIG, *, cloned=None, dropout: float = 0.0) -> IBRL:
    cloned = gaussian_actor(7) if cloned is None else cloned
    return IBRL(cloned, gaussian_actor(seed, dropout), critic(seed=seed + 1), config)


def modules(algorithm: IBRL) -> dict[str, torch.nn.Module]:
    return {"policy": algorithm.policy, "critic": algorithm.critic}


def rewarded(sign: float) -> ReplayBuffer:
    """Episodes of one decision whose reward is the mean of the action times ``sign``."""
    buffer = filled(200, 4)
    buffer._columns["reward"].copy_(sign * buffer._columns["action"].mean((1, 2)))
    buffer._columns["terminated"].fill_(True)
    return buffer


def test_two_updates_are_finite_and_leave_the_cloned_policy_alone() -> None:
    algorithm = make()
    before = full_state(algorithm, {**modules(algorithm), "cloned": algorithm.cloned})
    for _ in range(2):
        metrics = algorithm.update(filled(), updates=2, generator=rng())
        assert all(torch.isfinite(value) for value in metrics)
    after = full_state(algorithm, {**modules(algorithm), "cloned": algorithm.cloned})
    assert same(before["modules"]["cloned"], after["modules"]["cloned"])
    for part in ("policy", "critic"):
        for name, old in before["modules"][part].items():
            changes = not name.startswith("normalizer") and name != "net.log_var"  # the std stays
            assert torch.equal(old, after["modules"][part][name]) != changes, name


def test_the_cloned_policy_draws_from_the_generator_that_is_handed_over() -> None:
    """Not from torch's global one, which whatever else runs (an evaluation, say) would shift."""
    algorithm, untouched = make(cloned=Drawing(0.5)), torch.get_rng_state()
    chunks = [algorithm.explore(make_obs(20, rng(8)), rng())[0] for _ in range(2)]
    acted = [algorithm.act(make_obs(20, rng(8)), generator=rng()) for _ in range(2)]
    algorithm.update(filled(), updates=1, generator=rng())
    assert torch.equal(*chunks)
    assert torch.equal(*acted)
    assert torch.equal(torch.get_rng_state(), untouched)


@pytest.mark.parametrize("selection", list(Selection))
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_acting_asks_the_trained_critics(selection, sign) -> None:
    """Regression: the published code chooses with critics that never see an update, the same for both rewards."""
    algorithm = make(config=replace(CONFIG, selection=selection, critic_updates=10**6), cloned=Constant(1.6))
    algorithm.update(rewarded(sign), updates=150, generator=rng())
    with torch.no_grad():
        for parameter in algorithm.policy.net.body.parameters():
            parameter.zero_()  # the learning policy proposes 0, the cloned one .8 (normalised)
    _, action = algorithm.explore(make_obs(200, rng(8)), rng())
    cloned = (action - 0.8).abs().amax((1, 2)) < 1e-4
    share = float(cloned.float().mean())
    assert share > 0.95 if sign > 0 else share < 0.05
    assert torch.allclose(algorithm.act(make_obs(4, rng())), torch.tensor(1.6 if sign > 0 else 0.0), atol=1e-5)


def test_soft_choice_weights_are_the_softmax_of_beta_q() -> None:
    """Regression: exp inside the softmax. With Q .1 and 0, beta 10: e / (e + 1) = .731; exp(e) would give .848."""
    algorithm = make(cloned=Constant(1.6))
    heads = algorithm.critic.config.heads

    def values(obs, actions):
        q = torch.where(actions.flatten(2)[..., 0] > 0.7999, 0.1, 0.0)
        return q.expand(heads, -1, -1)

    algorithm.critic.each_of = values
    with torch.no_grad():
        for parameter in algorithm.policy.net.body.parameters():
            parameter.zero_()
    _, action = algorithm.explore(make_obs(20_000, rng(8)), rng())
    share = float(((action - 0.8).abs().amax((1, 2)) < 1e-4).float().mean())
    assert share == pytest.approx(0.7311, abs=0.012)


def test_target_is_the_larger_of_both_proposals() -> None:
    algorithm = make(cloned=Constant(1.6))
    batch = filled(64).sample(64, rng())
    q = {0.8: 2.0}

    def values(obs, actions):
        value = torch.where(actions.flatten(2)[..., 0] > 0.7999, q[0.8], 1.0)
        return value.expand(5, -1, -1)

    algorithm.target.module.each_of = values
    with torch.no_grad():
        for parameter in [*algorithm.critic.parameters(), *algorithm.target_actor.module.body.parameters()]:
            parameter.zero_()
    for cloned_value, best, share in ((2.0, 2.0, 1.0), (0.5, 1.0, 0.0)):
        q[0.8] = cloned_value
        target = batch.reward + 0.99 * torch.where(batch.terminated, 0.0, best)
        with torch.no_grad():
            for parameter in algorithm.critic.parameters():
                parameter.zero_()
        loss, _, cloned_share = algorithm._critic_step(batch, rng())
        assert float(loss) == pytest.approx(5 * float(target.square().mean()), rel=1e-5)
        assert float(cloned_share) == share


def test_resume_is_exact_from_weights_of_all_heads_and_targets() -> None:
    straight = make()
    generator = rng()
    straight.update(filled(), updates=3, generator=generator)
    saved, state = full_state(straight, modules(straight)), generator.get_state()
    straight.update(filled(), updates=3, generator=generator)
    resumed, generator = make(seed=50), rng()
    load_full(resumed, modules(resumed), saved)
    generator.set_state(state)
    resumed.update(filled(), updates=3, generator=generator)
    assert same(full_state(straight, modules(straight)), full_state(resumed, modules(resumed)))


def test_dropout_acts_in_policy_steps_alone() -> None:
    algorithm = make(dropout=0.5)
    obs = make_obs(6, rng())
    assert torch.equal(algorithm.act(obs), algorithm.act(obs))
    with_dropout = algorithm.policy.net.train()(algorithm.policy.encode(obs))
    assert not torch.equal(with_dropout, algorithm.policy.net.eval()(algorithm.policy.encode(obs)))
    algorithm.update(filled(), updates=2, generator=rng())
    assert not algorithm.policy.net.training
    assert torch.equal(algorithm.act(obs), algorithm.act(obs))


def test_policies_of_different_sizes_are_refused() -> None:
    class Other(Constant):
        spec = replace(SPEC, horizon=2)

    with pytest.raises(ConfigError, match="horizon"):
        make(cloned=Other(0.0))


@pytest.mark.parametrize("wrong", [{"gamma": 2.0}, {"tau": 0.0}, {"beta": 0.0}, {"target_heads": 0}])
def test_wrong_settings_are_refused(wrong) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        IBRLConfig(**wrong)
    assert make().num_updates(10) == 15
