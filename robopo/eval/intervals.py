"""Success rates with their uncertainty, and whether a difference on the same episodes is more than luck."""

from __future__ import annotations

from math import comb, sqrt
from statistics import NormalDist
from typing import NamedTuple

from robopo.errors import ConfigError


class Interval(NamedTuple):
    """A rate and its confidence bounds, all in [0, 1]."""

    low: float
    high: float
    point: float

    def __str__(self) -> str:
        """For example ``0.82 [0.69, 0.90]``."""
        return f"{self.point:.2f} [{self.low:.2f}, {self.high:.2f}]"


def wilson(successes: int, n: int, confidence: float = 0.95) -> Interval:
    """Score interval of a success rate (Wilson 1927, eq. 1): sensible at 0 and n successes, where p ± z·s is not."""
    if n < 1 or not 0 <= successes <= n:
        raise ConfigError(f"successes={successes}, n={n}: expected 0 <= successes <= n and at least one episode")
    if not 0.0 < confidence < 1.0:
        raise ConfigError(f"confidence={confidence}: must lie strictly between 0 and 1")
    z = NormalDist().inv_cdf(0.5 + confidence / 2)
    rate = successes / n
    center = (rate + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * sqrt(rate * (1 - rate) / n + z * z / (4 * n * n))
    # At the ends one bound is exact; rounding must not push it past.
    low = 0.0 if successes == 0 else max(0.0, center - half)
    high = 1.0 if successes == n else min(1.0, center + half)
    return Interval(low, high, rate)


def sign_test(gained: int, lost: int) -> float:
    """Two-sided exact p-value that two policies are equally good, from paired episodes (McNemar 1947, exact form).

    gained: episodes only the second policy solved; lost: episodes only the first one solved; pairs that agree
    say nothing.
    """
    if gained < 0 or lost < 0:
        raise ConfigError(f"gained={gained}, lost={lost}: counts can't be negative")
    n = gained + lost
    tail = sum(comb(n, k) for k in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**n)
