"""What a randomised MuJoCo simulator owns: a model per environment, its settings, late commands, noisy observations."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray
from sims.controllers import ActionMode
from sims.episode_book import EpisodeBook
from sims.randomize import ModelRandomizer, RandomizeConfig
from sims.randomized_episodes import ActionDelay, ObservationNoise, RandomizedEpisodes
from sims.render_overrides import VisualOverrides
from sims.scene import SceneLayout
from sims.task_samplers import ParameterSampler, make_sampler

PREFIX = "randomization."
LATENCY = "latency_steps"


class MujocoRandomization:
    """E models made once, given new physics whenever an episode begins."""

    def __init__(
        self,
        model: mujoco.MjModel,
        config: RandomizeConfig,
        sampler: str | Mapping[str, Any] | ParameterSampler,
        *,
        num_envs: int,
        action_dim: int,
        entries: Mapping[str, int],
        seed: int,
    ) -> None:
        """entries: low-dimensional observations and their lengths. seed: of a learning sampler's proposals."""
        self._randomizer = ModelRandomizer(model, config, tuple(entries))
        space = self._randomizer.space
        self.episodes = RandomizedEpisodes(space, num_envs, make_sampler(sampler, space.dim), seed=seed)
        self._models = self._randomizer.copies(num_envs)
        self._noise = ObservationNoise(space, entries)
        longest = max([int(p.high) for p in space.parameters if p.name == LATENCY], default=0)
        self._delay = ActionDelay(num_envs, longest, action_dim) if longest else None
        self.picture = self._randomizer.copies(1)[0]
        """The model that pictures are drawn of: see ``show``."""

    @property
    def independent(self) -> bool:
        """Whether an environment's settings are its own affair."""
        return self.episodes.sampler.batch_size == 0

    def begin(self, rows: NDArray[np.int64], book: EpisodeBook, hold: FloatArray) -> None:
        """Settings of the episodes that begin in ``rows``, before ``book.begin``; hold [n, A] is the action
        that keeps them where they start.
        """
        values = self.episodes.begin(rows, book.keys, book.episode)
        self._apply(rows, values)
        if self._delay is not None:
            self._delay.reset(rows, hold)

    def _apply(self, rows: NDArray[np.int64], values: NDArray[np.float64]) -> None:
        for row, value in zip(rows, values, strict=True):
            self._randomizer.apply(self._models[row], value)

    def models(self, rows: NDArray[np.int64]) -> list[mujoco.MjModel]:
        """The physics of ``rows``."""
        return [self._models[row] for row in rows]

    def delayed(self, rows: NDArray[np.int64], action: NDArray[np.float64]) -> NDArray[np.float64]:
        """What acts now [n, A], when the commands action [n, A] are given now."""
        if self._delay is None:
            return action
        late = self._randomizer.value(self.episodes.values[rows], LATENCY, 0.0)
        return self._delay.push(rows, action, late.astype(np.int64))

    def observed(self, obs: dict[str, FloatArray], book: EpisodeBook) -> dict[str, FloatArray]:
        """Entries [E, D] as they are seen."""
        if not self._noise:
            return obs
        return self._noise.add(obs, self.episodes.values, book.keys, book.episode, book.steps)

    def finished(self, rows: NDArray[np.int64], returns: FloatArray, success: BoolArray) -> None:
        """Report the episodes that ended in ``rows``, before ``begin``."""
        self.episodes.finished(rows, returns, success)

    def show(self, env: int) -> mujoco.MjModel:
        """``picture``, with the looks of environment ``env``."""
        overrides = self._randomizer.visual(self.episodes.values[env : env + 1])
        if overrides is not None:
            for name, array in overrides.absolute(self._randomizer.model, 1).items():
                getattr(self.picture, name)[:] = array[0]
        return self.picture

    @property
    def looks(self) -> VisualOverrides | None:
        """What all environments look like now; None where nothing that is seen varies."""
        return self._randomizer.visual(self.episodes.values)

    def state(self) -> dict[str, NDArray[Any]]:
        """Part of ``VecSim.state``, under names of its own."""
        found = self.episodes.state()
        if self._delay is not None:
            found |= {f"delay.{name}": array for name, array in self._delay.state().items()}
        return {PREFIX + name: array for name, array in found.items()}

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """Continue from ``state()``; the caller has checked shapes."""
        own = {name.removeprefix(PREFIX): array for name, array in state.items() if name.startswith(PREFIX)}
        self.episodes.restore(own)
        self._apply(np.arange(len(self._models)), self.episodes.values)
        if self._delay is not None:
            self._delay.restore({"past": own["delay.past"]})


def holding_action(layout: SceneLayout, reference: NDArray[np.float64]) -> NDArray[np.float64]:
    """The actions [n, A] of all arms that leave the actuators' targets at reference [n, nu]."""
    parts: list[NDArray[np.float64]] = []
    for arm in layout.arms:
        size = arm.controller.feature.shape[0] - 1
        joints = reference[:, arm.actuator[:-1]]
        still = joints if arm.controller.mode is ActionMode.JOINT_POSITION else np.zeros((len(reference), size))
        parts += [still, reference[:, arm.actuator[-1:]]]
    return np.concatenate(parts, axis=1)
