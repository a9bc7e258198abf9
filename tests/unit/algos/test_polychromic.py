"""Sets of continuations in a batch: where their advantage goes, and that nothing else moves."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from robopo.algos.choices import Advantages, RolloutKind
from robopo.algos.gae_advantage import GAE
from robopo.algos.polychromic import Polychromic
from robopo.errors import ConfigError
from robopo.losses.polychromic import polychromic_advantage
from robopo.rollout.collector import Collector
from robopo.rollout.vine import PathSignature, VineCollector, VineConfig
from robopo.types import RolloutBatch
from tests.helpers.fake_policy import FakePolicy
from tests.helpers.point_mass import PointMass

T, P, N = 6, 2, 4
CONFIG = VineConfig(states=P, continuations=N, sets=3, set_size=2, signature=PathSignature(radius=0.3))


def sim() -> PointMass:
    """Reward 1 at every step within reach of the goal, so that continuations earn different returns."""
    return PointMass(3, max_episode_steps=20, radius=0.8, terminate_on_success=False)


def vine_batch() -> RolloutBatch:
    return VineCollector(sim(), FakePolicy(1), CONFIG, seed=1).collect(T, torch.Generator().manual_seed(0))


def values(batch: RolloutBatch) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(5)
    value, after = torch.randn(2, *batch.reward.shape, generator=generator)
    return value, after


def estimate(estimator: GAE | Polychromic, batch: RolloutBatch, scale: float = 1.0) -> Advantages:
    return estimator(batch, scale * batch.reward, *values(batch))


def test_no_vine_is_gae_bit_for_bit() -> None:
    plain = Collector(sim(), FakePolicy(1)).collect(T, torch.Generator().manual_seed(0))
    found, expected = estimate(Polychromic(gamma=0.9, lam=0.8), plain), estimate(GAE(gamma=0.9, lam=0.8), plain)
    assert found.advantage.equal(expected.advantage) and found.returns.equal(expected.returns)
    assert found.use is None
    assert Polychromic().rollout is RolloutKind.VINE


def test_the_window_alone_is_replaced() -> None:
    batch = vine_batch()
    use, vine, step = (batch.extras[key] for key in ("use", "vine", "vine_step"))
    assert int(step[vine >= 0].max()) >= 4  # continuations are longer than the window
    found, expected = estimate(Polychromic(window=3), batch), estimate(GAE(), batch)
    assert found.returns.equal(expected.returns)
    assert found.use is not None and found.use.equal(use)
    window = (vine >= 0) & (step < 3)
    assert found.advantage[~window].equal(expected.advantage[~window])
    replaced = found.advantage != expected.advantage
    checked = 0
    for state in range(P):
        for env in range(3):
            rows = [(vine[:, env] == state * N + j) for j in range(N)]
            earned = torch.stack([(batch.reward[:, env] * use[:, env])[row].sum() for row in rows])
            sets, labels = batch.extras["vine_sets"][state, :, :, env], batch.extras["vine_label"][state, :, env]
            objective = []
            for members in sets.tolist():
                distinct = len({int(labels[j]) for j in members})
                objective.append(float(earned[members].mean()) * distinct / len(members))
            mean = sum(objective) / len(objective)
            for j, row in enumerate(rows):
                mine = [f - mean for f, members in zip(objective, sets.tolist(), strict=True) if j in members]
                inside = row & window[:, env]
                if mine:
                    advantage = torch.full((int(inside.sum()),), sum(mine) / len(mine))
                    torch.testing.assert_close(found.advantage[inside, env], advantage)
                    checked += bool(mine[0])
                else:
                    assert not replaced[inside, env].any()  # in no set: GAE
    assert checked > 5


def test_scaled_rewards_scale_both_parts() -> None:
    batch = vine_batch()
    once, twice = estimate(Polychromic(), batch), estimate(Polychromic(), batch, scale=2.0)
    window = (batch.extras["vine"] >= 0) & (batch.extras["vine_step"] < 5)
    gae = estimate(GAE(), batch).advantage
    by_sets = window & (once.advantage != gae)
    assert by_sets.any()
    torch.testing.assert_close(twice.advantage[by_sets], 2.0 * once.advantage[by_sets])


def test_equal_sets_and_failures_teach_nothing() -> None:
    batch = vine_batch()
    window = (batch.extras["vine"] >= 0) & (batch.extras["vine_step"] < 5)
    everyone = torch.arange(N)[None, None, :, None].expand(P, 3, N, 3)
    equal = replace(batch, extras={**batch.extras, "vine_sets": everyone})
    assert estimate(Polychromic(), equal).advantage[window].eq(0).all()
    failed = replace(equal, reward=torch.zeros_like(batch.reward))
    assert estimate(Polychromic(), failed).advantage[window].eq(0).all()


def test_states_and_environments_keep_their_places() -> None:
    """One state at a time through the function that knows no batches."""
    batch = vine_batch()
    use, vine = batch.extras["use"], batch.extras["vine"]
    found = estimate(Polychromic(window=1), batch).advantage
    for state in range(P):
        numbers = range(state * N, (state + 1) * N)
        earned = torch.stack([(batch.reward * (use & (vine == c))).sum(0) for c in numbers])
        out = polychromic_advantage(
            returns=earned, labels=batch.extras["vine_label"][state], sets=batch.extras["vine_sets"][state]
        )
        for j, c in enumerate(numbers):
            first = int(torch.nonzero(vine[:, 0] == c)[0])
            torch.testing.assert_close(found[first][out.member[j]], out.advantage[j][out.member[j]])


def test_ranges_are_checked() -> None:
    for name, bad in (("window", 0), ("gamma", 1.5), ("lam", -0.1)):
        with pytest.raises(ConfigError, match=name):
            Polychromic(**{name: bad})
