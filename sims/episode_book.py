"""Which episode each environment is in: what every VecSim counts, kept in one place."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray, Seed
from sims.seeding import environment_keys, episode_generator


class EpisodeBook:
    """Keys, episode numbers, steps and returns of E environments; episode k of one is decided by (key, k)."""

    def __init__(self, num_envs: int) -> None:
        self.keys = np.zeros(num_envs, dtype=np.uint64)
        self.episode = np.zeros(num_envs, dtype=np.int64)
        """Number of the next episode: the running one is ``episode - 1``."""
        self.steps = np.zeros(num_envs, dtype=np.int64)
        self.returns = np.zeros(num_envs)
        self.diverged_count = 0
        """Episodes that ended because the engine gave up, since construction."""

    @property
    def num_envs(self) -> int:
        """E."""
        return len(self.keys)

    def reseed(self, seed: Seed, rows: NDArray[np.int64]) -> None:
        """Give ``rows`` new keys (see ``VecSim.reset``) and start them at episode 0; None changes nothing."""
        if seed is not None:
            self.keys[rows] = environment_keys(seed, self.num_envs)[rows]
            self.episode[rows] = 0

    def generator(self, row: int) -> np.random.Generator:
        """The generator of the episode that environment ``row`` begins next."""
        return episode_generator(int(self.keys[row]), int(self.episode[row]))

    def begin(self, rows: NDArray[np.int64]) -> None:
        """The next episode of each of ``rows`` has begun."""
        self.episode[rows] += 1
        self.steps[rows], self.returns[rows] = 0, 0.0

    def count(self, reward: FloatArray, active: BoolArray, diverged: BoolArray) -> None:
        """One control step of the environments in ``active`` [E]; ``reward`` [E] is 0 outside it."""
        self.steps += active
        self.returns += reward
        self.diverged_count += int(diverged.sum())

    def info(self, success: BoolArray, diverged: BoolArray) -> dict[str, Any]:
        """``Step.info`` of the step just counted."""
        return {
            "success": success,
            "diverged": diverged,
            "episode_return": self.returns.copy(),
            "episode_length": self.steps.copy(),
        }

    def state(self) -> dict[str, NDArray[Any]]:
        """Copies, for ``VecSim.state``."""
        return {
            "keys": self.keys.copy(),
            "episode": self.episode.copy(),
            "steps": self.steps.copy(),
            "return": self.returns.copy(),
            "diverged_count": np.array(self.diverged_count),
        }

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from ``state()``; the caller has checked shapes."""
        self.keys, self.episode = np.array(state["keys"]), np.array(state["episode"])
        self.steps, self.returns = np.array(state["steps"]), np.array(state["return"])
        self.diverged_count = int(state["diverged_count"])
