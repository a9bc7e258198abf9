"""The randomisation of E environments: who is in which setting, delayed actions, noisy observations.

Everything here is owned by a simulator, belongs to its ``state()`` and is decided by an environment's (key, episode,
step) alone as long as the sampler is: a learning sampler ties the environments together through its proposals.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray
from sims.philox import counter_normals
from sims.randomize import ParameterSpace
from sims.task_samplers import Objective, ParameterSampler

NOISE_STREAM = 1
"""First stream of the observations' noise, in the alphabetical order of entries."""


def parameter_generator(key: int, episode: int) -> np.random.Generator:
    """Draws an episode's parameters: the episode's own key, but another part of the counter than its start uses, so
    that randomisation leaves starts as they were.
    """
    counter = np.array([0, 0, 0, 1], dtype=np.uint64)
    return np.random.Generator(np.random.Philox(key=np.array([key, episode], dtype=np.uint64), counter=counter))


class RandomizedEpisodes:
    """Each environment's setting, from a sampler that hears how its settings went.

    A learning sampler proposes B settings at a time into a queue; episodes that begin take the next one, whichever
    environment they run in. After every B finished episodes, in the order in which they ended (within one step: of
    their environments), the sampler learns from them. Settings already queued stay: an update shows up at most B
    episodes later. Episodes that a reset broke off don't count.
    """

    def __init__(self, space: ParameterSpace, num_envs: int, sampler: ParameterSampler, *, seed: int = 0) -> None:
        """seed: decides the proposals of a sampler that proposes in batches."""
        self.space, self.sampler, self._seed = space, sampler, seed
        batch = sampler.batch_size
        self._u = np.full((num_envs, space.dim), 0.5)
        self._values = space.physical(self._u)
        self._queue, self._queued, self._proposals = np.zeros((batch, space.dim)), 0, 0
        self._ended, self._outcome, self._count = np.zeros((batch, space.dim)), np.zeros(batch), 0

    @property
    def u(self) -> NDArray[np.float64]:
        """[E, P] each environment's setting in [0, 1] (a view: don't write)."""
        return self._u

    @property
    def values(self) -> NDArray[np.float64]:
        """[E, P] each environment's physical values (a view: don't write)."""
        return self._values

    @property
    def parameters(self) -> dict[str, NDArray[np.float64]]:
        """``Step.info["parameters"]``: name → [E] physical values."""
        return self.space.named(self._values)

    def begin(
        self, rows: NDArray[np.int64], keys: NDArray[np.uint64], episodes: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Settle the parameters of the episodes [E] that begin in ``rows`` → their physical values [n, P].

        keys, episodes [E]: the environments' keys and the numbers of the episodes that begin.
        """
        for row in rows:
            if self.sampler.batch_size == 0:
                rng = parameter_generator(int(keys[row]), int(episodes[row]))
                self._u[row] = self.sampler.propose(rng, 1)[0]
            else:
                self._u[row] = self._next()
        self._values[rows] = self.space.physical(self._u[rows])
        return self._values[rows]

    def _next(self) -> NDArray[np.float64]:
        if self._queued == 0:
            rng = parameter_generator(self._seed, self._proposals)
            self._queue = self.sampler.propose(rng, self.sampler.batch_size)
            self._queued, self._proposals = len(self._queue), self._proposals + 1
        self._queued -= 1
        return self._queue[len(self._queue) - 1 - self._queued]

    def finished(self, rows: NDArray[np.int64], returns: FloatArray, success: BoolArray) -> None:
        """Report the episodes that ended in ``rows`` by themselves, before ``begin``: returns and success are [n]."""
        batch = self.sampler.batch_size
        if batch == 0:
            return
        outcome = returns if self.sampler.objective is Objective.RETURN else success.astype(np.float64)
        for row, value in zip(rows, outcome, strict=True):
            self._ended[self._count], self._outcome[self._count] = self._u[row], value
            self._count += 1
            if self._count == batch:
                self.sampler.update(self._ended.copy(), self._outcome.copy())
                self._count = 0

    def state(self) -> dict[str, NDArray[Any]]:
        """Settings, queue, unlearned episodes and the sampler, as arrays of constant shapes."""
        found: dict[str, NDArray[Any]] = {
            "u": self._u.copy(),
            "queue": self._queue.copy(),
            "ended": self._ended.copy(),
            "outcome": self._outcome.copy(),
            "counts": np.array([self._queued, self._proposals, self._count, self._seed]),
        }
        return found | {f"sampler.{name}": array for name, array in self.sampler.state().items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from ``state()``; the caller has checked shapes."""
        self._u, self._queue = np.array(state["u"]), np.array(state["queue"])
        self._values = self.space.physical(self._u)
        self._ended, self._outcome = np.array(state["ended"]), np.array(state["outcome"])
        self._queued, self._proposals, self._count, self._seed = (int(count) for count in state["counts"])
        prefix = "sampler."
        self.sampler.restore({name[len(prefix) :]: array for name, array in state.items() if name.startswith(prefix)})


class ActionDelay:
    """Each environment acts on the command of some control steps ago."""

    def __init__(self, num_envs: int, max_delay: int, action_dim: int) -> None:
        """max_delay: the longest delay that will be asked for, in control steps."""
        self._past = np.zeros((num_envs, max_delay + 1, action_dim))  # newest first

    def reset(self, rows: NDArray[np.int64], hold: FloatArray) -> None:
        """The commands before an episode's first are ``hold`` [n, A] (or [A])."""
        self._past[rows] = np.broadcast_to(hold, (len(rows), self._past.shape[2]))[:, None]

    def push(
        self, rows: NDArray[np.int64], action: NDArray[np.float64], delay: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Take the commands action [n, A] of ``rows``; gives what acts now [n, A]: that of ``delay`` [n] steps ago."""
        past = self._past[rows]
        past = np.concatenate([action[:, None], past[:, :-1]], axis=1)
        self._past[rows] = past
        return past[np.arange(len(rows)), delay]

    def state(self) -> dict[str, NDArray[Any]]:
        """The commands that may still act."""
        return {"past": self._past.copy()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from ``state()``; the caller has checked shapes."""
        self._past = np.array(state["past"])


class ObservationNoise:
    """Gaussian noise on the low-dimensional entries. It has no state: row i's noise is a function of its key, episode
    and step, so looking twice sees the same, and E doesn't matter.
    """

    def __init__(self, space: ParameterSpace, entries: Mapping[str, int]) -> None:
        """entries: name → length D of every low-dimensional observation."""
        self._width = dict(sorted(entries.items()))
        self._column: dict[str, int] = {}
        for index, name in enumerate(space.names):
            kind, _, entry = name.partition(".")
            if kind == "observation_noise":
                self._column |= dict.fromkeys([entry] if entry else self._width, index)

    def __bool__(self) -> bool:
        """Whether any entry is noisy."""
        return bool(self._column)

    def add(
        self,
        obs: Mapping[str, FloatArray],
        values: NDArray[np.float64],
        keys: NDArray[np.uint64],
        episode: NDArray[np.int64],
        step: NDArray[np.int64],
    ) -> dict[str, FloatArray]:
        """New entries [E, D] with noise of the standard deviations in values [E, P]; other entries as they are."""
        noisy = dict(obs)
        for stream, (name, width) in enumerate(self._width.items()):
            if name in self._column:
                std = values[:, self._column[name], None]
                noise = std * counter_normals(keys, episode, step, width, NOISE_STREAM + stream)
                noisy[name] = (obs[name] + noise).astype(obs[name].dtype)
        return noisy
