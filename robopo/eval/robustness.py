"""How bad it gets where the world differs: worst-case figures of episodes that ran under varied parameters.

A setting is one combination of parameters; episodes that share it exactly are averaged first. CVaR_α is the mean over
the worst share α of the settings: α = 1 is the plain mean, α → 0 the worst setting. Where every episode has a setting
of its own, CVaR_α of success is max(0, 1 - failure rate / α): it tells more with several episodes per setting.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from math import sqrt
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopo.data.files import write_text
from robopo.errors import ConfigError, DataError, NonFiniteError
from robopo.eval.intervals import Interval, wilson

SCHEMA = 1
RESAMPLES = 1000
CHUNK = 2_000_000
"""Numbers drawn at once by the bootstrap, to bound its memory."""

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Cvar:
    """Mean over the worst share of the settings."""

    alpha: float
    """The share, in (0, 1]."""
    value: float
    """Of all settings that ran."""
    low: float
    """Lower 95 % bound, bootstrapped over settings."""
    high: float
    """Upper one."""


@dataclass(frozen=True, slots=True)
class Bin:
    """Episodes whose parameter lies in [low, high] (the upper edge belongs to the last bin alone)."""

    low: float
    high: float
    n: int
    success: Interval
    """Rate with its 95 % Wilson interval."""
    mean_return: float
    return_sem: float | None
    """Standard error of the mean return; None of a single episode."""

    @property
    def middle(self) -> float:
        """Where a curve shows it."""
        return 0.5 * (self.low + self.high)


@dataclass(frozen=True, slots=True)
class Curve:
    """What one parameter does, whatever the others were."""

    parameter: str
    bins: tuple[Bin, ...]
    """Those with episodes, rising."""
    success_trend: float
    """Spearman's rank correlation of parameter and success, in [-1, 1]; 0 where one of them never varies."""
    success_p: float
    """Two-sided p-value of no monotone trend (normal approximation)."""
    return_trend: float
    return_p: float


@dataclass(frozen=True, slots=True)
class Robustness:
    """The whole of it."""

    n: int
    """Episodes."""
    settings: int
    """Different combinations of parameters."""
    success: Interval
    """Over all episodes."""
    mean_return: float
    return_cvar: tuple[Cvar, ...]
    success_cvar: tuple[Cvar, ...]
    curves: tuple[Curve, ...]
    """One per parameter that varied."""
    has_success: bool = True
    """Whether the simulator knows success; where not, the returns are what counts."""
    min_count: int = 5
    """Episodes that a bin needs to be called the worst."""

    @property
    def worst(self) -> tuple[str, Bin] | None:
        """Parameter and bin with the lowest success rate (return, where success isn't known) of enough episodes."""
        found = [(curve.parameter, part) for curve in self.curves for part in curve.bins if part.n >= self.min_count]

        def rank(item: tuple[str, Bin]) -> tuple[float, float]:
            part = item[1]
            return (part.success.point, part.success.high) if self.has_success else (part.mean_return, 0.0)

        return min(found, key=rank, default=None)

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        worst = self.worst
        named = {"parameter": worst[0], **_plain(worst[1])} if worst else None
        return {"schema": SCHEMA, **_plain(self), "worst": named}

    def write_json(self, path: Path) -> Path:
        """Write ``to_json`` to ``path``, all of it or nothing."""
        write_text(Path(path), json.dumps(self.to_json(), indent=2) + "\n")
        return Path(path)


def robustness(
    parameters: Mapping[str, Sequence[float] | Array],
    returns: Sequence[float] | Array,
    success: Sequence[bool] | NDArray[np.bool_],
    *,
    alphas: Sequence[float] = (0.1, 0.5),
    bins: int = 8,
    has_success: bool = True,
    seed: int = 0,
) -> Robustness:
    """Judge N episodes: parameters name → [N], returns [N], success [N].

    alphas: shares of CVaR. bins: of equal width per parameter; a parameter of fewer values has one bin per value.
    seed: of the bootstrap. DataError for arrays that don't match, NonFiniteError for values that aren't finite.
    """
    values, outcome, solved = _checked(parameters, returns, success)
    if bins < 1 or not all(0 < alpha <= 1 for alpha in alphas):
        raise ConfigError(f"bins={bins}, alphas={list(alphas)}: at least one bin, and shares in (0, 1]")
    matrix = np.stack(list(values.values()), axis=1)  # [N, P]
    _, setting = np.unique(matrix, axis=0, return_inverse=True)
    setting = np.asarray(setting).reshape(-1)
    counts = np.bincount(setting)

    def tail(episode_values: Array) -> tuple[Cvar, ...]:
        per_setting = np.bincount(setting, weights=episode_values) / counts
        return tuple(bootstrapped_cvar(per_setting, alpha, seed=seed) for alpha in alphas)

    curves = [_curve(name, value, outcome, solved, bins) for name, value in values.items() if np.ptp(value) > 0]
    return Robustness(
        n=len(outcome),
        settings=len(counts),
        success=wilson(int(solved.sum()), len(solved)),
        mean_return=float(outcome.mean()),
        return_cvar=tail(outcome),
        success_cvar=tail(solved.astype(np.float64)),
        curves=tuple(curves),
        has_success=has_success,
    )


def cvar(values: Array, alpha: float) -> Array:
    """Mean of the lowest share ``alpha`` of values [..., n] → [...]; the value at the edge counts in part."""
    n = values.shape[-1]
    weight = np.clip(alpha * n - np.arange(n), 0.0, 1.0)
    return np.sort(values, axis=-1) @ weight / weight.sum()


def bootstrapped_cvar(values: Array, alpha: float, *, seed: int = 0, resamples: int = RESAMPLES) -> Cvar:
    """CVaR of values [n] with the middle 95 % of what ``resamples`` resampled lists of settings give."""
    rng, n = np.random.default_rng(seed), len(values)
    chunk = max(1, CHUNK // n)
    drawn = [
        cvar(values[rng.integers(n, size=(min(chunk, resamples - start), n))], alpha)
        for start in range(0, resamples, chunk)
    ]
    low, high = np.quantile(np.concatenate(drawn), [0.025, 0.975])
    return Cvar(alpha, float(cvar(values, alpha)), float(low), float(high))


def spearman(x: Array, y: Array) -> tuple[float, float]:
    """Rank correlation of x [n], y [n] with ties at their mean rank, and the p-value of none (normal approximation)."""
    ranks = [_mean_ranks(values) for values in (x, y)]
    centred = [rank - rank.mean() for rank in ranks]
    scale = sqrt(float((centred[0] ** 2).sum() * (centred[1] ** 2).sum()))
    if scale == 0:
        return 0.0, 1.0
    rho = float(centred[0] @ centred[1]) / scale
    return rho, 2 * (1 - NormalDist().cdf(abs(rho) * sqrt(len(x) - 1)))


def _mean_ranks(values: Array) -> Array:
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - 0.5 * (counts - 1))[np.asarray(inverse).reshape(-1)]


def _curve(name: str, value: Array, outcome: Array, solved: NDArray[np.bool_], bins: int) -> Curve:
    distinct = np.unique(value)
    if len(distinct) <= bins:
        place, edges = np.searchsorted(distinct, value), np.stack([distinct, distinct], axis=1)
    else:
        cuts = np.linspace(distinct[0], distinct[-1], bins + 1)
        place = np.clip(np.searchsorted(cuts, value, side="right") - 1, 0, bins - 1)
        edges = np.stack([cuts[:-1], cuts[1:]], axis=1)
    found: list[Bin] = []
    for index, (low, high) in enumerate(edges):
        here = place == index
        if n := int(here.sum()):
            inside = outcome[here]
            sem = float(inside.std(ddof=1)) / sqrt(n) if n > 1 else None
            rate = wilson(int(solved[here].sum()), n)
            found.append(Bin(float(low), float(high), n, rate, float(inside.mean()), sem))
    rates, totals = spearman(value, solved.astype(np.float64)), spearman(value, outcome)
    return Curve(name, tuple(found), *rates, *totals)


def _checked(
    parameters: Mapping[str, Sequence[float] | Array],
    returns: Sequence[float] | Array,
    success: Sequence[bool] | NDArray[np.bool_],
) -> tuple[dict[str, Array], Array, NDArray[np.bool_]]:
    outcome, solved = np.asarray(returns, dtype=np.float64), np.asarray(success, dtype=np.bool_)
    values = {name: np.asarray(value, dtype=np.float64) for name, value in parameters.items()}
    if outcome.ndim != 1 or len(outcome) == 0 or solved.shape != outcome.shape:
        raise DataError(f"returns {list(outcome.shape)}, success {list(solved.shape)}: expected [N] each, N > 0")
    if not values:
        raise DataError("no parameters: evaluate in a randomised simulator (sim.randomize)")
    for name, value in (*values.items(), ("returns", outcome)):
        if value.shape != outcome.shape:
            raise DataError(f"parameter {name!r} is {list(value.shape)}, expected [{len(outcome)}]")
        if not np.isfinite(value).all():
            raise NonFiniteError(f"{name} is NaN or infinite in episode {int(np.flatnonzero(~np.isfinite(value))[0])}")
    return values, outcome, solved


def _plain(value: Any) -> Any:
    tree = asdict(value)

    def rates(node: Any) -> Any:
        if isinstance(node, Interval):
            return node._asdict()
        if isinstance(node, dict):
            return {key: rates(inner) for key, inner in node.items()}
        return [rates(inner) for inner in node] if isinstance(node, list | tuple) else node

    return rates(tree)
