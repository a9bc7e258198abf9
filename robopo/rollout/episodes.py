"""What a rollout reports, and the seeds from which its episodes start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopo.errors import ConfigError

SEED_LIMIT = 2**31
"""Episode seeds are below it: every engine's generator takes them."""


@dataclass(frozen=True, slots=True)
class Episode:
    """One finished episode. length counts control steps; return_ is the undiscounted sum of rewards."""

    env: int
    return_: float
    length: int
    success: bool
    """The task was fulfilled at some step."""
    final_success: bool
    """The task was fulfilled at the last step."""
    diverged: bool = False
    """The simulator's state became non-finite or exploded."""


@dataclass(frozen=True, slots=True)
class RolloutStats:
    """What one ``collect`` did."""

    episodes: tuple[Episode, ...]
    decisions: int
    """Decisions in all environments; T * E unless some had to wait."""
    env_steps: int
    """Control steps that really ran, over all environments; masked ones don't count."""
    policy_s: float
    """Wall-clock seconds inside the policy."""
    sim_s: float
    """Wall-clock seconds inside the simulator."""
    total_s: float
    has_success: bool = True
    """Whether the simulator knows success; where not, there is no rate."""

    @property
    def successes(self) -> int:
        """Number of finished episodes that succeeded."""
        return sum(episode.success for episode in self.episodes)

    @property
    def diverged(self) -> int:
        """Number of episodes that ended because the physics broke."""
        return sum(episode.diverged for episode in self.episodes)

    @property
    def success_rate(self) -> float:
        """Share of the finished episodes that succeeded; NaN when none finished, or nothing can succeed."""
        return self.successes / len(self.episodes) if self.episodes and self.has_success else float("nan")

    @property
    def mean_return(self) -> float:
        """Mean return of the finished episodes; NaN when none finished."""
        return sum(e.return_ for e in self.episodes) / len(self.episodes) if self.episodes else float("nan")

    @property
    def mean_length(self) -> float:
        """Mean length of the finished episodes in control steps; NaN when none finished."""
        return sum(e.length for e in self.episodes) / len(self.episodes) if self.episodes else float("nan")


class EpisodeSeeds:
    """An endless stream of episode seeds, 0 to 2^31 - 1, that leaves out a reserved range.

    Call k depends on (seed, k) alone, so its whole state is one number.
    """

    def __init__(self, seed: int, *, reserved: range) -> None:
        """seed: 0 to 2^64 - 1. reserved: seeds that are never drawn, such as those of evaluation episodes."""
        if not 0 <= seed < 2**64:
            raise ConfigError(f"seed={seed}: expected 0 to 2^64 - 1")
        if reserved.step != 1 or len(reserved) >= SEED_LIMIT // 2:
            raise ConfigError(f"reserved={reserved}: expected a range with step 1 that leaves half of all seeds free")
        self._seed, self._reserved, self._calls = seed, reserved, 0

    def draw(self, n: int) -> NDArray[np.int64]:
        """N seeds [n]."""
        rng = np.random.Generator(np.random.Philox(key=np.array([self._seed, self._calls], np.uint64)))
        self._calls += 1
        seeds = rng.integers(0, SEED_LIMIT, n)
        while (bad := (seeds >= self._reserved.start) & (seeds < self._reserved.stop)).any():
            seeds[bad] = rng.integers(0, SEED_LIMIT, int(bad.sum()))
        return seeds

    def state_dict(self) -> dict[str, int]:
        """How often seeds were drawn."""
        return {"calls": self._calls}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue exactly from ``state_dict()`` of a stream with the same seed."""
        self._calls = int(state["calls"])
