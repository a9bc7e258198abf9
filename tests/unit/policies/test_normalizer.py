"""Scaling to [-1, 1] and back."""

from __future__ import annotations

import pytest
import torch

from robopo.errors import ConfigError, DataError, ShapeError
from robopo.policies.normalizer import MinMaxNormalizer


def test_bounds_become_minus_one_and_one():
    n = MinMaxNormalizer.fit({"a": torch.tensor([[0.0, -4.0], [2.0, 4.0], [1.0, 0.0]])})
    got = n.apply("a", torch.tensor([[0.0, -4.0], [2.0, 4.0], [1.0, 0.0]]))
    torch.testing.assert_close(got, torch.tensor([[-1.0, -1.0], [1.0, 1.0], [0.0, 0.0]]), rtol=0, atol=2e-6)


def test_round_trip():
    x = 5.0 * torch.randn(100, 3) + 2.0
    n = MinMaxNormalizer.fit({"a.b": x})
    torch.testing.assert_close(n.invert("a.b", n.apply("a.b", x)), x, rtol=0, atol=1e-5)
    before = x.clone()
    n.apply("a.b", x)
    assert torch.equal(x, before)


def test_a_constant_dimension_stays_finite_and_quiet():
    """All values 7 and a range of at least .01: sensor noise of 1e-3 becomes .2, not 2000."""
    n = MinMaxNormalizer.fit({"a": torch.full((10, 1), 7.0)})
    assert n.apply("a", torch.tensor([[7.0]])).item() == pytest.approx(0.0, abs=2e-4)
    assert n.apply("a", torch.tensor([[7.001]])).item() == pytest.approx(0.2, abs=1e-3)
    exact = MinMaxNormalizer.fit({"a": torch.full((10, 1), 7.0)}, min_range=0.0)
    assert torch.isfinite(exact.apply("a", torch.tensor([[7.0]]))).all()


def test_least_range_per_key():
    n = MinMaxNormalizer.fit({"a": torch.zeros(2, 1), "b": torch.zeros(2, 1)}, min_range={"a": 2.0})
    assert [bound.item() for bound in n.bounds("a")] == [-1.0, 1.0]
    assert [bound.item() for bound in n.bounds("b")] == pytest.approx([-0.005, 0.005])


def test_bad_data_and_unknown_keys_are_named():
    with pytest.raises(DataError, match="'a' holds NaN"):
        MinMaxNormalizer.fit({"a": torch.tensor([[float("nan")]])})
    with pytest.raises(DataError, match="'a' is \\[0, 2\\]"):
        MinMaxNormalizer.fit({"a": torch.zeros(0, 2)})
    with pytest.raises(ConfigError, match="did you mean 'state'"):
        MinMaxNormalizer.fit({"state": torch.rand(3, 2)}).apply("stat", torch.zeros(2))


def test_loaded_bounds_are_used():
    n, other = (MinMaxNormalizer.fit({"a": torch.tensor([[0.0], [high]])}) for high in (2.0, 4.0))
    assert n.apply("a", torch.tensor([1.0])).item() == pytest.approx(0.0, abs=1e-5)
    n.load_state_dict(other.state_dict())
    assert n.apply("a", torch.tensor([1.0])).item() == pytest.approx(-0.5, abs=1e-5)
    assert n.double().apply("a", torch.ones(1).double()).dtype == torch.float64


def test_moved_bounds_are_used_saved_and_checked():
    n = MinMaxNormalizer({"a": (torch.zeros(2), torch.ones(2)), "b": (torch.zeros(1), torch.ones(1))})
    n.apply("a", torch.zeros(2))  # remembers the old factors
    n.set_bounds("a", torch.tensor([-1.0, 0.0]), torch.tensor([3.0, 2.0]).double())
    torch.testing.assert_close(n.apply("a", torch.tensor([1.0, 2.0])), torch.tensor([0.0, 1.0]), rtol=0, atol=2e-6)
    assert n.state_dict()["low_0"].tolist() == [-1.0, 0.0] and n.state_dict()["high_0"].dtype == torch.float32
    assert n.bounds("b")[1].item() == 1.0
    with pytest.raises(ShapeError, match=r"expected \[2\] each"):
        n.set_bounds("a", torch.zeros(1), torch.ones(1))
    with pytest.raises(ConfigError, match="no statistics"):
        n.set_bounds("c", torch.zeros(1), torch.ones(1))
