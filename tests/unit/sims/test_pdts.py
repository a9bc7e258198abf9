"""The task sampler that trains where the policy is bad (PDTS): pick, predictor, posterior, resume."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal

from sims.pdts import PDTSConfig, PDTSSampler, diverse_pick, gaussian_kl


def rng(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def bowl(params: np.ndarray) -> np.ndarray:
    """Returns that fall towards the middle of the square: risk is a bump there."""
    return ((params - 0.5) ** 2).sum(axis=1) / 0.5


def spearman(a: np.ndarray, b: np.ndarray) -> float:
    return float(np.corrcoef(a.argsort().argsort(), b.argsort().argsort())[0, 1])


def trained(iterations: int = 40, **settings) -> PDTSSampler:
    sampler = PDTSSampler(2, PDTSConfig(batch_size=32, **settings))
    for k in range(iterations):
        params = sampler.propose(rng(k), 32)
        sampler.update(params, bowl(params))
    return sampler


def test_no_diversity_takes_the_highest_scores() -> None:
    scores, points = rng(0).standard_normal(50), rng(1).random((50, 3))
    assert diverse_pick(scores, points, 12, 0.0).tolist() == np.argsort(-scores)[:12].tolist()


def test_diversity_keeps_the_picks_apart_by_hand() -> None:
    points, scores = np.array([[0.0], [0.1], [1.0]]), np.array([1.0, 0.9, 0.2])
    assert diverse_pick(scores, points, 2, 0.0).tolist() == [0, 1]
    # ½·0.9 + 0.5·0.1 = 0.5 against ½·0.2 + 0.5·1 = 0.6
    assert diverse_pick(scores, points, 2, 0.5).tolist() == [0, 2]
    # after the far one the nearest pick counts: 0.45 + 0.05
    assert diverse_pick(scores, points, 3, 0.5).tolist() == [0, 2, 1]
    with pytest.raises(ValueError, match="only 3"):
        diverse_pick(scores, points, 4, 0.5)


@pytest.mark.parametrize("settings", [{}, {"diversity": 5.0}, {"acquisition": "ucb"}, {"candidate_multiplier": 1.0}])
def test_nothing_is_proposed_twice(settings: dict) -> None:
    sampler = trained(3, **settings)
    params = sampler.propose(rng(9), 33)
    assert params.shape == (33, 2) and len(np.unique(params, axis=0)) == 33
    assert ((params >= 0) & (params <= 1)).all()
    same = np.ones((6, 2))  # even where candidates coincide, none is picked twice
    assert sorted(diverse_pick(np.zeros(6), same, 6, 1.0).tolist()) == list(range(6))


def test_the_predictor_ranks_a_bowl_and_proposals_go_where_risk_is() -> None:
    sampler, probe = trained(25), rng(100).random((500, 2))
    risk = -bowl(probe)
    assert spearman(sampler.predict(probe), risk) > 0.9
    proposed = np.concatenate([sampler.propose(rng(200 + k), 32) for k in range(10)])
    assert (-bowl(proposed)).mean() > risk.mean() + 0.08


def test_diversity_spreads_what_is_proposed() -> None:
    def spread(sampler: PDTSSampler) -> float:
        params = sampler.propose(rng(5), 32)
        distance = np.linalg.norm(params[:, None] - params[None], axis=-1)
        return float(np.where(distance == 0, np.inf, distance).min(axis=1).mean())

    assert spread(trained(2, diversity=10.0)) > 1.3 * spread(trained(2, diversity=0.0))


def test_the_posterior_follows_the_stream() -> None:
    sampler, probe = trained(5), rng(3).random((200, 2))
    before = [tensor.clone() for tensor in sampler._prior]
    for k in range(30):  # the policy has changed: now the corners are risky
        params = rng(k).random((32, 2))
        sampler.update(params, -bowl(params))
    assert spearman(sampler.predict(probe), bowl(probe)) > 0.8
    assert not torch.equal(sampler._prior[0], before[0])

    # A heavier KL holds the posterior closer to the one before.
    def moved(weight: float) -> float:
        held = PDTSSampler(2, PDTSConfig(kl_weight=weight, updates=50))
        params = rng(0).random((32, 2))
        held.update(params, 10 * bowl(params))
        standard = torch.zeros(10), torch.ones(10)
        return float(gaussian_kl(*held._prior, *standard))

    assert moved(100.0) < moved(0.0)


def test_kl_of_gaussians_against_torch() -> None:
    torch.manual_seed(0)
    mean, other = torch.randn(2, 4)
    std, other_std = torch.rand(2, 4) + 0.1
    p, q = torch.distributions.Normal(mean, std), torch.distributions.Normal(other, other_std)
    expected = torch.distributions.kl_divergence(p, q).sum()
    torch.testing.assert_close(gaussian_kl(mean, std, other, other_std), expected)


@pytest.mark.parametrize("done", [0, 4])
def test_resume_is_exact(done: int) -> None:
    sampler = trained(done)
    other = PDTSSampler(2, PDTSConfig(batch_size=32, seed=7))
    other.restore(sampler.state())
    other.config = sampler.config
    for k in range(3):
        left, right = sampler.propose(rng(50 + k), 32), other.propose(rng(50 + k), 32)
        assert_array_equal(left, right)
        sampler.update(left, bowl(left))
        other.update(right, bowl(right))
    for name, array in sampler.state().items():
        assert_array_equal(array, other.state()[name], err_msg=name)
    assert {k: v.shape for k, v in PDTSSampler(2, sampler.config).state().items()} == {
        k: v.shape for k, v in sampler.state().items()
    }


def test_the_seed_decides_and_the_callers_torch_generator_is_left_alone() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    states = [trained(2, seed=seed).state() for seed in (0, 0, 1)]
    assert torch.equal(torch.rand(3), expected)
    assert_array_equal(states[0]["net.decoder.0.weight"], states[1]["net.decoder.0.weight"])
    assert not np.array_equal(states[0]["net.decoder.0.weight"], states[2]["net.decoder.0.weight"])


def test_what_is_not_finite_is_refused_and_not_learned() -> None:
    sampler = trained(1)
    before = sampler.state()
    params = rng(0).random((4, 2))
    with pytest.raises(ValueError, match=r"episodes \[2\]"):
        sampler.update(params, np.array([0, 1, np.nan, 2.0]))
    with pytest.raises(ValueError, match="physical"):
        sampler.update(params + 1, np.zeros(4))
    with pytest.raises(ValueError, match="expected"):
        sampler.update(params[:, :1], np.zeros(4))
    for name, array in sampler.state().items():
        assert_array_equal(array, before[name])


@pytest.mark.parametrize(
    "settings", [{"batch_size": 0}, {"candidate_multiplier": 0.5}, {"diversity": -1.0}, {"objective": "speed"}]
)
def test_wrong_settings_are_refused(settings: dict) -> None:
    with pytest.raises(ValueError):
        PDTSConfig(**settings)
