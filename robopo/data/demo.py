"""Demonstrations in memory, checked once so that everything downstream may trust them."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from robopo.errors import DataError, did_you_mean

Float32Array = NDArray[np.float32]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
Frames = NDArray[Any]
"""float32 [N, D], or pictures: uint8 [N, height, width, 3]."""

ACTION = "action"


class Columns(NamedTuple):
    """Names and SI units of the elements of one array; an unknown unit is an empty string."""

    names: tuple[str, ...]
    units: tuple[str, ...]


class Episode(NamedTuple):
    """One demonstration: obs entries [L, D] and action [L, A] in physical units; success None means unknown.

    Pictures among the entries are uint8 [L, height, width, 3].
    """

    obs: Mapping[str, NDArray[Any]]
    action: NDArray[Any]
    success: bool | None = None


@dataclass(frozen=True, slots=True, eq=False)
class DemoData:
    """N frames of M demonstrations, episode after episode. Arrays are read-only copies made at construction.

    Pictures are not copied, for they fill the memory: leave theirs alone once they are here. Raises DataError when
    there is nothing to learn from or a value can't be trained on.
    """

    obs: Mapping[str, Frames]
    """Observation entries [N, D] in physical units, under the simulator's names (``state``, ``environment_state``), and
    pictures uint8 [N, height, width, 3] (``image_<camera>``)."""
    action: Float32Array
    """[N, A], physical units."""
    episode_index: IntArray
    """[N], 0..M-1, never decreasing."""
    control_hz: float
    """Frames per second."""
    action_mode: str = ""
    """``joint_position``, ``joint_delta``, ``ee_delta``, ``normalized``; empty when the source doesn't say."""
    task: str = ""
    """Task name, for example ``lift``."""
    instruction: str = ""
    """The task in one sentence."""
    features: Mapping[str, Columns] = field(default_factory=dict[str, Columns])
    """Element names and units of each observation entry and of ``action``; missing ones are numbered, and pictures have
    none."""
    success: BoolArray | None = None
    """[M] whether each demonstration fulfilled the task, or None when the source doesn't say."""
    fingerprint: str = field(init=False, default="")
    """SHA-256 over names, shapes and values: equal data have equal fingerprints, whatever file they came from."""

    def __post_init__(self) -> None:
        obs = {key: _frozen(key, value) for key, value in sorted(self.obs.items())}
        action = _frozen_matrix(ACTION, self.action)
        episode_index = np.array(self.episode_index, dtype=np.int64).reshape(-1)
        episode_index.setflags(write=False)
        success = None if self.success is None else np.array(self.success, dtype=np.bool_).reshape(-1)
        _check_lengths(obs, action, episode_index, success)
        if not np.isfinite(self.control_hz) or self.control_hz <= 0:
            raise DataError(f"control_hz={self.control_hz}: demonstrations need a positive frame rate in Hz")
        arrays = {**obs, ACTION: action}
        numbers = {key: array for key, array in arrays.items() if not is_pictures(array)}
        features = {key: _columns(key, array.shape[1], self.features.get(key)) for key, array in numbers.items()}
        _check_finite(numbers, features, episode_index)
        _set(self, obs=obs, action=action, episode_index=episode_index, success=success, features=features)
        _set(self, fingerprint=_fingerprint(arrays, episode_index))

    @classmethod
    def from_episodes(cls, episodes: Sequence[Episode], *, control_hz: float, **described: Any) -> DemoData:
        """Join demonstrations. ``described``: action_mode, task, instruction, features (see the fields)."""
        if len(episodes) == 0:
            raise DataError("zero demonstrations: record or collect at least one episode first")
        for index, episode in enumerate(episodes):
            _check_episode(index, episode, expected=episodes[0].obs)
        keys = sorted(episodes[0].obs)
        flags = [episode.success for episode in episodes]
        return cls(
            obs={key: np.concatenate([_entry(e.obs[key]) for e in episodes]) for key in keys},
            action=np.concatenate([np.asarray(e.action, np.float32) for e in episodes]),
            episode_index=np.repeat(np.arange(len(episodes)), [len(e.action) for e in episodes]),
            control_hz=control_hz,
            success=None if any(flag is None for flag in flags) else np.array(flags, dtype=np.bool_),
            **described,
        )

    @property
    def images(self) -> tuple[str, ...]:
        """Names of the pictures."""
        return tuple(key for key, value in self.obs.items() if is_pictures(value))

    @property
    def num_episodes(self) -> int:
        """M."""
        return int(self.episode_index[-1]) + 1

    @property
    def num_frames(self) -> int:
        """N."""
        return int(self.action.shape[0])

    @property
    def action_dim(self) -> int:
        """A."""
        return int(self.action.shape[1])

    @property
    def lengths(self) -> IntArray:
        """[M] frames of each demonstration."""
        return np.bincount(self.episode_index, minlength=self.num_episodes).astype(np.int64)

    @property
    def starts(self) -> IntArray:
        """[M] first frame of each demonstration."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)[:-1]])

    def episode(self, index: int) -> Episode:
        """Demonstration ``index`` as views."""
        start = int(self.starts[index])
        rows = slice(start, start + int(self.lengths[index]))
        success = None if self.success is None else bool(self.success[index])
        return Episode({key: value[rows] for key, value in self.obs.items()}, self.action[rows], success)

    def require(
        self,
        obs: Mapping[str, int],
        action_dim: int | None = None,
        images: Mapping[str, tuple[int, int, int]] | None = None,
    ) -> None:
        """Raise DataError unless every wanted entry exists with the wanted size (of a policy or a simulator)."""
        for key, shape in (images or {}).items():
            if key not in self.images:
                raise DataError(
                    f"the demonstrations have no pictures {key!r}{did_you_mean(key, self.images)}; record them with "
                    f"robopo collect sim.cameras=[{key.removeprefix('image_')}]"
                )
            if self.obs[key].shape[1:] != tuple(shape):
                raise DataError(
                    f"pictures {key!r} are {list(self.obs[key].shape[1:])} in the demonstrations, expected "
                    f"{list(shape)}; use sim.image_size={self.obs[key].shape[1]}, or record them again"
                )
        for key, dim in obs.items():
            if key not in self.features:
                raise DataError(f"the demonstrations have no column {key!r}{did_you_mean(key, self.obs)}")
            found = self.obs[key].shape[1]
            if found != dim:
                names = ", ".join(self.features[key].names)
                raise DataError(
                    f"column {key!r} has {found} elements ({names}), expected {dim}; "
                    "were the demonstrations recorded with this robot and task?"
                )
        if action_dim is not None and self.action_dim != action_dim:
            names = ", ".join(self.features[ACTION].names)
            raise DataError(
                f"demonstrated actions have {self.action_dim} elements ({names}), expected {action_dim}; "
                f"they were recorded as {self.action_mode or 'an unknown action mode'}: "
                "choose a policy and a simulator to match"
            )


def _set(data: DemoData, **values: Any) -> None:
    for name, value in values.items():
        object.__setattr__(data, name, value)


def is_pictures(array: NDArray[Any]) -> bool:
    """Whether these are pictures, uint8 [N, height, width, 3]."""
    return array.dtype == np.uint8 and array.ndim == 4 and array.shape[3] == 3


def _entry(values: NDArray[Any]) -> Frames:
    array = np.asarray(values)
    return array if is_pictures(array) else np.asarray(array, np.float32)


def _frozen(key: str, value: NDArray[Any]) -> Frames:
    if not is_pictures(np.asarray(value)):
        return _frozen_matrix(key, value)
    array = np.ascontiguousarray(value).view()
    array.setflags(write=False)
    return array


def _frozen_matrix(key: str, value: NDArray[Any]) -> Float32Array:
    array = np.array(value, dtype=np.float32)  # a copy: the caller keeps the original
    if array.ndim != 2:
        raise DataError(f"column {key!r} has shape {array.shape}, expected [frames, elements]")
    array.setflags(write=False)
    return array


def _check_episode(index: int, episode: Episode, *, expected: Mapping[str, NDArray[Any]]) -> None:
    for key in expected:
        if key not in episode.obs:
            raise DataError(f"episode {index} has no column {key!r}{did_you_mean(key, episode.obs)}")
    for key, value in {**episode.obs, ACTION: episode.action}.items():
        if len(value) != len(episode.action):
            raise DataError(f"episode {index}: {key!r} has {len(value)} frames, the actions {len(episode.action)}")
    if len(episode.action) == 0:
        raise DataError(f"episode {index} has no frames; leave it out")


def _check_lengths(
    obs: Mapping[str, Frames], action: Float32Array, episode_index: IntArray, success: BoolArray | None
) -> None:
    if len(action) == 0:
        raise DataError("zero demonstrations: the dataset has no frames; record or collect at least one episode first")
    if not obs:
        raise DataError("the demonstrations have no observation column, expected at least one, such as 'state'")
    for key, value in {**obs, "episode_index": episode_index}.items():
        if len(value) != len(action):
            raise DataError(f"column {key!r} has {len(value)} frames, the actions {len(action)}; lengths must agree")
    steps = np.diff(episode_index)
    if episode_index[0] != 0 or np.any((steps != 0) & (steps != 1)):
        raise DataError("episode_index must run 0, 0, ..., 1, 1, ... without gaps; sort the frames by episode")
    if success is not None and len(success) != episode_index[-1] + 1:
        raise DataError(f"{len(success)} success flags for {episode_index[-1] + 1} episodes; give one each, or None")


def _columns(key: str, dim: int, given: Columns | None) -> Columns:
    if given is None:
        return Columns(tuple(f"{key}_{i}" for i in range(dim)), ("",) * dim)
    names, units = tuple(given.names), tuple(given.units) or ("",) * dim
    if len(names) != dim or len(units) != dim:
        raise DataError(f"column {key!r} has {dim} elements but {len(names)} names and {len(units)} units")
    return Columns(names, units)


def _check_finite(arrays: Mapping[str, Float32Array], features: Mapping[str, Columns], episode_index: IntArray) -> None:
    for key, array in arrays.items():
        bad = ~np.isfinite(array)
        if not bad.any():
            continue
        row, column = (int(i) for i in np.argwhere(bad)[0])
        episode = int(episode_index[row])
        frame = row - int(np.searchsorted(episode_index, episode))
        episodes = sorted({int(e) for e in episode_index[bad.any(axis=1)]})
        raise DataError(
            f"{array[row, column]} in episode {episode}, frame {frame}, column {key!r} element "
            f"{features[key].names[column]!r} ({int(bad.sum())} bad values in all, in episodes {episodes[:10]}); "
            "record these episodes again or leave them out (exclude_episodes=...)"
        )


def _fingerprint(arrays: Mapping[str, Float32Array], episode_index: IntArray) -> str:
    digest = hashlib.sha256()
    for key, array in sorted([*arrays.items(), ("episode_index", episode_index)]):
        digest.update(f"{key} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
