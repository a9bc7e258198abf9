"""Wilson intervals and the sign test against numbers worked out by hand."""

from __future__ import annotations

import pytest

from robopo.errors import ConfigError
from robopo.eval.intervals import sign_test, wilson


def test_wilson_at_the_ends() -> None:
    # z^2 = 1.959964^2 = 3.841459. No success in 10: high = z^2 / (n + z^2) = 3.841459 / 13.841459 = 0.277533
    assert wilson(0, 10) == pytest.approx((0.0, 0.277533, 0.0), abs=1e-6)
    assert wilson(10, 10) == pytest.approx((1 - 0.277533, 1.0, 1.0), abs=1e-6)
    assert wilson(0, 10).low == 0.0
    assert wilson(10, 10).high == 1.0


def test_wilson_in_the_middle() -> None:
    # 5 of 10: centre .5; half width = z / (1 + z^2/10) * sqrt(.025 + z^2/400)
    # = 1.959964 / 1.384146 * sqrt(.0346036) = 1.416009 * .186021 = .263408
    assert wilson(5, 10) == pytest.approx((0.236592, 0.763408, 0.5), abs=2e-6)
    # Known from the literature: 41 of 50 gives 0.69 to 0.90
    assert str(wilson(41, 50)) == "0.82 [0.69, 0.90]"


def test_wilson_narrows_with_n_and_widens_with_confidence() -> None:
    assert wilson(500, 1000).low > wilson(5, 10).low
    assert wilson(5, 10, 0.99).low < wilson(5, 10, 0.95).low


@pytest.mark.parametrize(("successes", "n"), [(1, 0), (-1, 3), (4, 3)])
def test_wilson_refuses_impossible_counts(successes: int, n: int) -> None:
    with pytest.raises(ConfigError, match=f"successes={successes}, n={n}"):
        wilson(successes, n)
    with pytest.raises(ConfigError, match="confidence=1"):
        wilson(1, 2, 1.0)


def test_sign_test() -> None:
    # 5 to 0: 2 / 2^5. 1 to 1: certain. 6 to 1: 2 (1 + 7) / 2^7.
    assert sign_test(5, 0) == 0.0625
    assert sign_test(0, 5) == 0.0625
    assert sign_test(1, 1) == 1.0
    assert sign_test(6, 1) == 0.125
    assert sign_test(0, 0) == 1.0
    with pytest.raises(ConfigError, match="negative"):
        sign_test(-1, 0)
