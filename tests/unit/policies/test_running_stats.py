"""Statistics of observations that grow rollout by rollout."""

from __future__ import annotations

import pytest
import torch

from robopo.errors import ConfigError, ShapeError
from robopo.policies.normalizer import MinMaxNormalizer
from robopo.policies.running_stats import RunningObsConfig, RunningObsStats, scratch_normalizer


def normalizer() -> MinMaxNormalizer:
    return scratch_normalizer({"state": 2, "goal": 1}, [-2.0], [4.0])


def test_two_merges_by_hand() -> None:
    """Rows (1, 0), (3, 0) then (8, 0): means 2 and 4, population variances 1 and 26/3."""
    n = normalizer()
    stats = RunningObsStats(n, ["state"], RunningObsConfig(width=2.0, min_std=0.5))
    stats.update({"state": torch.tensor([[1.0, 0.0], [3.0, 0.0]])[:, None]})
    assert stats.mean("state").tolist() == [2.0, 0.0] and stats.std("state").tolist() == [1.0, 0.5]
    assert [bound.tolist() for bound in n.bounds("state")] == [[0.0, -1.0], [4.0, 1.0]]
    stats.update({"state": torch.tensor([[8.0, 0.0]])[:, None]})
    assert stats.count == 3 and stats.mean("state")[0].item() == pytest.approx(4.0)
    assert stats.std("state")[0].item() == pytest.approx((26 / 3) ** 0.5)
    assert [bound.item() for bound in n.bounds("action")] == [-2.0, 4.0]


def test_many_rollouts_equal_one() -> None:
    """[T, E, To, D] with an offset that float32 sums would drown; only the newest row of a history counts."""
    x = torch.randn(30, 4, 3, 2, generator=torch.Generator().manual_seed(0)) + 1e4
    n = normalizer()
    stats = RunningObsStats(n, ["state"])
    for part in x.split(7):
        stats.update({"state": part})
    rows = x[:, :, -1].reshape(-1, 2).double()
    torch.testing.assert_close(stats.mean("state"), rows.mean(0), rtol=1e-12, atol=0)
    torch.testing.assert_close(stats.std("state"), rows.std(0, correction=0), rtol=1e-8, atol=0)
    y = n.apply("state", x[:, :, -1].reshape(-1, 2))
    torch.testing.assert_close(y.mean(0), torch.zeros(2), rtol=0, atol=2e-3)
    torch.testing.assert_close(y.std(0, correction=0), torch.ones(2), rtol=0, atol=2e-3)


def test_saved_statistics_continue_exactly() -> None:
    x = torch.randn(3, 5, 2, 1, 2, generator=torch.Generator().manual_seed(1))
    whole, half, resumed = (RunningObsStats(normalizer(), ["state"]) for _ in range(3))
    for part in x:
        whole.update({"state": part})
    half.update({"state": x[0]})
    saved = half.state_dict()
    half.update({"state": x[1]})  # must not change what was saved
    resumed.load_state_dict(saved)
    resumed.normalizer.load_state_dict(half.normalizer.state_dict())
    for part in x[1:]:
        resumed.update({"state": part})
    assert resumed.count == whole.count
    assert torch.equal(resumed.mean("state"), whole.mean("state"))
    assert torch.equal(resumed.std("state"), whole.std("state"))
    for got, expected in zip(resumed.normalizer.bounds("state"), whole.normalizer.bounds("state"), strict=True):
        assert torch.equal(got, expected)
    with pytest.raises(ShapeError, match="same simulator"):
        RunningObsStats(normalizer(), ["goal"]).load_state_dict(saved)


def test_wrong_observations_and_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="no statistics for 'stat'; did you mean 'state'"):
        RunningObsStats(normalizer(), ["stat"])
    with pytest.raises(ShapeError, match=r"'state' is \[4, 1, 3\], expected \[..., To, 2\]"):
        RunningObsStats(normalizer(), ["state"]).update({"state": torch.zeros(4, 1, 3)})
    with pytest.raises(ConfigError, match="must be positive"):
        RunningObsConfig(min_std=0.0)


def test_a_policy_without_data_starts_from_the_bounds_of_its_actions() -> None:
    n = normalizer()
    torch.testing.assert_close(
        n.invert("action", torch.tensor([[-1.0], [0.0], [1.0]])), torch.tensor([[-2.0], [1.0], [4.0]])
    )
    torch.testing.assert_close(
        n.apply("state", torch.tensor([0.5, -3.0])), torch.tensor([0.5, -3.0]), rtol=0, atol=5e-6
    )
    for low, high in (([-1.0], [float("inf")]), ([1.0], [1.0]), ([0.0], [1.0, 2.0])):
        with pytest.raises(ConfigError, match="finite bounds"):
            scratch_normalizer({"state": 2}, low, high)
    with pytest.raises(ConfigError, match="obs_range"):
        scratch_normalizer({"state": 2}, [0.0], [1.0], obs_range=0.0)
