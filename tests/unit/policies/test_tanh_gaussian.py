"""The soft actor: its density is that of torch's transformed Gaussian, also far out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.distributions import Normal, TransformedDistribution
from torch.distributions.transforms import TanhTransform

from robopo.errors import ConfigError
from robopo.policies.tanh_gaussian import TanhGaussianConfig, log_tanh_slope
from tests.unit.algos.off_policy_toy import SPEC, make_obs, rng, soft_actor


def test_density_is_that_of_the_squashed_gaussian() -> None:
    policy = soft_actor().double()
    obs = {"state": make_obs(64, rng())["state"].double()}
    cond = policy.encode(obs)
    action, log_prob = policy.rsample(cond, rng())
    mean, log_std = policy.net(cond)
    squashed = TransformedDistribution(Normal(mean, log_std.exp()), [TanhTransform()])
    torch.testing.assert_close(log_prob, squashed.log_prob(action.detach()).sum((1, 2)), rtol=1e-6, atol=1e-6)
    assert action.abs().max() < 1.0


def test_slope_is_finite_where_tanh_rounds_to_1() -> None:
    u = torch.tensor([-40.0, 0.0, 1.0, 40.0])
    expected = torch.log(1.0 - u.double().tanh().square())
    assert torch.isfinite(log_tanh_slope(u)).all()
    torch.testing.assert_close(log_tanh_slope(u)[1:3].double(), expected[1:3], rtol=1e-6, atol=1e-6)
    assert float(log_tanh_slope(u)[3]) == pytest.approx(-2.0 * 40.0 + 2.0 * 0.6931472, rel=1e-5)


def test_many_draws_for_each_observation() -> None:
    policy = soft_actor()
    cond = policy.encode(make_obs(4, rng())).expand(7, -1, -1)
    action, log_prob = policy.rsample(cond, rng())
    assert action.shape == (7, 4, 1, 2)
    assert log_prob.shape == (7, 4)


def test_it_is_a_policy_without_scored_steps() -> None:
    policy, obs = soft_actor(), make_obs(4, rng())
    chunk, chain = policy.sample_chain(obs, generator=rng())
    torch.testing.assert_close(policy.normalizer.invert("action", chain.latents[:, 0]), chunk)
    assert chain.log_probs.shape == policy.replay(obs, chain.latents).shape == (4, 0)
    assert torch.equal(policy.act(obs), policy.act(obs))
    assert not torch.equal(policy.act(obs, deterministic=False, generator=rng()), policy.act(obs))


def test_wrong_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="horizon=2, action_steps=1"):
        soft_actor(spec=replace(SPEC, horizon=2))
    with pytest.raises(ConfigError, match="hidden"):
        TanhGaussianConfig(hidden=())
    with pytest.raises(ConfigError, match="min_log_std"):
        TanhGaussianConfig(min_log_std=2.0)
