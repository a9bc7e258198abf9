"""Who decides the parameters of the next episodes: proposes vectors in [0, 1]^P, and may learn from returns."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from enum import StrEnum
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray


class Objective(StrEnum):
    """What a sampler is told about a finished episode."""

    RETURN = "return"
    """The undiscounted sum of rewards."""
    SUCCESS = "success"
    """1 where the episode ended in success, else 0."""


class ParameterSampler(Protocol):
    """Proposes parameters u in [0, 1]^P."""

    @property
    def dim(self) -> int:
        """P."""
        ...

    @property
    def batch_size(self) -> int:
        """B: proposals are made, and learned from, this many at a time. 0: an episode's proposal is its own affair, one
        draw from its own generator, and nothing is learned.
        """
        ...

    @property
    def objective(self) -> Objective:
        """What ``update`` takes as returns."""
        ...

    def propose(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """[n, P] in [0, 1]; all randomness comes from ``rng``."""
        ...

    def update(self, params: NDArray[np.float64], returns: NDArray[np.float64]) -> None:
        """Learn from finished episodes: params [B, P], returns [B]. ValueError for anything not finite."""
        ...

    def state(self) -> dict[str, NDArray[Any]]:
        """Everything that decides the future, as arrays whose shapes never change."""
        ...

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue bit for bit from ``state()``."""
        ...


class UniformSampler:
    """Plain domain randomisation: every parameter uniform, every episode from its own generator."""

    batch_size = 0
    objective = Objective.RETURN

    def __init__(self, dim: int) -> None:
        self.dim = checked_dim(dim)

    def propose(self, rng: np.random.Generator, n: int) -> NDArray[np.float64]:
        """See ``ParameterSampler.propose``."""
        return rng.random((n, self.dim))

    def update(self, params: NDArray[np.float64], returns: NDArray[np.float64]) -> None:
        """See ``ParameterSampler.update``; the arrays are checked, nothing is learned."""
        check_finished(params, returns, self.dim)

    def state(self) -> dict[str, NDArray[Any]]:
        """See ``ParameterSampler.state``: none."""
        return {}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """See ``ParameterSampler.restore``."""


def make_sampler(sampler: str | Mapping[str, Any] | ParameterSampler, dim: int) -> ParameterSampler:
    """``uniform`` or ``pdts``; a mapping with that ``name`` and the sampler's settings; or an object, as it is."""
    if not isinstance(sampler, str | Mapping):
        if sampler.dim != dim:
            raise ValueError(f"the sampler proposes {sampler.dim} parameters, the randomisation has {dim}")
        return sampler
    settings = {"name": sampler} if isinstance(sampler, str) else {str(k): v for k, v in sampler.items()}
    name = str(settings.pop("name", ""))
    known: dict[str, Callable[..., ParameterSampler]] = {"uniform": UniformSampler, "pdts": _pdts}
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(known)}"
        raise ValueError(f"unknown sampler {name!r}: {hint}")
    try:
        return known[name](dim, **settings)
    except TypeError as error:
        raise ValueError(f"sampler {name!r} doesn't take these settings: {error}") from error


def _pdts(dim: int, **settings: Any) -> ParameterSampler:
    from sims.pdts import PDTSConfig, PDTSSampler  # torch, seconds to import, only for who learns

    return PDTSSampler(dim, PDTSConfig(**settings))


def checked_dim(dim: int) -> int:
    """``dim``, or ValueError unless there is something to propose."""
    if dim < 1:
        raise ValueError(f"dim={dim}: a sampler needs at least one parameter; is every range null?")
    return dim


def check_finished(params: NDArray[np.float64], returns: NDArray[np.float64], dim: int) -> None:
    """ValueError unless params is [B, P] in [0, 1] and returns is [B] and finite."""
    if params.ndim != 2 or params.shape[1] != dim or returns.shape != params.shape[:1]:
        shapes = f"params {list(params.shape)}, returns {list(returns.shape)}"
        raise ValueError(f"{shapes}: expected [B, {dim}] and [B]")
    if not ((params >= 0) & (params <= 1)).all():
        raise ValueError("params must lie in [0, 1]: pass u, not physical values")
    if not np.isfinite(returns).all():
        bad = np.flatnonzero(~np.isfinite(returns)).tolist()
        raise ValueError(f"returns are NaN or infinite in episodes {bad} of this batch; nothing was learned")
