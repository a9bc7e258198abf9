"""Per-environment generators that don't depend on how many environments there are.

Episode k of an environment draws from a counter-based generator keyed by (environment key, k): two integers per
environment are its whole random state.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from sims.base import Seed


def environment_keys(seed: Seed, num_envs: int) -> NDArray[np.uint64]:
    """[E] keys: from (seed, i) for an int seed, from each element alone for an array [E] of episode seeds."""
    if isinstance(seed, np.ndarray) and seed.ndim > 0:
        seeds = seed
        if seeds.shape != (num_envs,):
            raise ValueError(f"seed has shape {list(seeds.shape)}, expected an int or [{num_envs}] integers")
        pairs: list[tuple[int, ...]] = [(int(value),) for value in seeds]
    else:
        pairs = [(int(seed or 0), i) for i in range(num_envs)]
    return np.array([np.random.SeedSequence(pair).generate_state(1, np.uint64)[0] for pair in pairs], dtype=np.uint64)


def episode_generator(key: int, episode: int) -> np.random.Generator:
    """The generator of one episode."""
    return np.random.Generator(np.random.Philox(key=np.array([key, episode], dtype=np.uint64)))
