"""Windows of observation history and action chunks, cut from demonstrations that stay in memory."""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from robopo.data.demo import DemoData, IntArray
from robopo.errors import ConfigError, DataError


class WindowEnd(StrEnum):
    """What happens to windows that reach past the last frame of a demonstration."""

    PAD = "pad"
    """Keep them: the last action repeats and ``pad_mask`` marks the repeats."""
    INSIDE = "inside"
    """Drop them, as the published DPPO code does: the last H-1 frames never condition a sample."""


class WindowBatch(NamedTuple):
    """obs entries [B, To, D], newest last; action [B, H, A], whose first row belongs to the newest observation;
    pad_mask [B, H] bool, True where the row is padding. Physical units.
    """

    obs: dict[str, Tensor]
    action: Tensor
    pad_mask: Tensor


class WindowDataset:
    """All windows of the chosen demonstrations, as index tables into tensors on ``device``.

    Window w starts at some frame t of an episode: observations t-To+1..t (frames before the start repeat the first one)
    and actions t..t+H-1. Reading is a gather, without a Python loop over samples.
    """

    def __init__(
        self,
        data: DemoData,
        *,
        obs_steps: int,
        horizon: int,
        end: WindowEnd = WindowEnd.PAD,
        episodes: Sequence[int] | None = None,
        device: torch.device | str = "cpu",
        keys: Collection[str] | None = None,
    ) -> None:
        """obs_steps To, horizon H; episodes: which demonstrations to use (default: all). keys: observation entries to
        read (default: all); pictures are read where they lie, on the host.
        """
        if obs_steps < 1 or horizon < 1:
            raise ConfigError(f"obs_steps={obs_steps}, horizon={horizon}: both must be at least 1")
        chosen = _chosen_episodes(data, episodes)
        obs_index, action_index, padded = _window_tables(data, chosen, obs_steps, horizon, end)
        chosen_keys = list(data.obs) if keys is None else [key for key in data.obs if key in keys]
        self._obs = {key: _entry(data.obs[key], device) for key in chosen_keys}
        self._action = torch.tensor(data.action, device=device)
        self._obs_index = torch.from_numpy(obs_index).to(device)  # [W, To]
        self._action_index = torch.from_numpy(action_index).to(device)  # [W, H]
        self._padded = torch.from_numpy(padded).to(device)  # [W, H]

    def __len__(self) -> int:
        """W, the number of windows."""
        return len(self._action_index)

    def gather(self, index: Tensor) -> WindowBatch:
        """The windows ``index`` [B] (long), in that order."""
        index = index.to(self._action_index.device)
        rows = self._obs_index[index]
        obs = {key: value[rows.to(value.device)] for key, value in self._obs.items()}
        return WindowBatch(obs, self._action[self._action_index[index]], self._padded[index])

    def batches(
        self, batch_size: int, generator: torch.Generator | None = None, *, drop_last: bool = False
    ) -> Iterator[WindowBatch]:
        """One pass over all windows, each once: shuffled by ``generator`` (on the CPU), in order without one.

        drop_last leaves out a smaller last batch, unless it is the only one.
        """
        if batch_size < 1:
            raise ConfigError(f"batch_size={batch_size}: at least 1 is needed")
        order = torch.arange(len(self)) if generator is None else torch.randperm(len(self), generator=generator)
        for start in range(0, len(self), batch_size):
            index = order[start : start + batch_size]
            if drop_last and start > 0 and len(index) < batch_size:
                return
            yield self.gather(index)


def split_episodes(data: DemoData, validation_fraction: float, *, seed: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Split whole demonstrations into (training, validation) episode numbers, both sorted.

    Frames of one demonstration never land on both sides. With a positive fraction each side gets at least one episode.
    """
    if not 0.0 <= validation_fraction < 1.0:
        raise ConfigError(f"validation_fraction={validation_fraction}: must be at least 0 and below 1")
    total = data.num_episodes
    if validation_fraction == 0.0:
        return tuple(range(total)), ()
    if total < 2:
        raise DataError("one demonstration can't be split into training and validation; use validation_fraction=0")
    held_out = min(max(1, round(validation_fraction * total)), total - 1)
    order = np.random.default_rng(seed).permutation(total)
    validation = sorted(int(e) for e in order[:held_out])
    return tuple(sorted(int(e) for e in order[held_out:])), tuple(validation)


def _chosen_episodes(data: DemoData, episodes: Sequence[int] | None) -> IntArray:
    chosen = np.arange(data.num_episodes) if episodes is None else np.array(sorted(set(episodes)), dtype=np.int64)
    if len(chosen) == 0:
        raise DataError("zero demonstrations chosen: give at least one episode number")
    if chosen[0] < 0 or chosen[-1] >= data.num_episodes:
        raise DataError(f"episodes {chosen[0]}..{chosen[-1]} chosen, the dataset has 0..{data.num_episodes - 1}")
    return chosen.astype(np.int64)


def _window_tables(
    data: DemoData, episodes: IntArray, obs_steps: int, horizon: int, end: WindowEnd
) -> tuple[IntArray, IntArray, np.ndarray[tuple[int, ...], np.dtype[np.bool_]]]:
    """Frame numbers of each window: observations [W, To], actions [W, H], and which actions are padding [W, H]."""
    lengths, starts = data.lengths[episodes], data.starts[episodes]
    windows = lengths if end is WindowEnd.PAD else np.maximum(lengths - horizon + 1, 0)
    if windows.sum() == 0:
        raise DataError(
            f"no window of {horizon} actions fits in the demonstrations (the longest has {lengths.max()} frames); "
            "use a shorter horizon or WindowEnd.PAD"
        )
    first = np.repeat(starts, windows)[:, None]  # [W, 1] first frame of the window's episode
    last = np.repeat(starts + lengths - 1, windows)[:, None]
    offset = np.concatenate([np.arange(n) for n in windows])[:, None]  # [W, 1] frame within the episode
    obs_index = np.maximum(first + offset + np.arange(-obs_steps + 1, 1), first)
    wanted = first + offset + np.arange(horizon)
    return obs_index.astype(np.int64), np.minimum(wanted, last).astype(np.int64), wanted > last


def frame_tensors(
    data: DemoData, *, device: torch.device | str = "cpu", keys: Collection[str] | None = None
) -> Mapping[str, Tensor]:
    """All frames by name, ``action`` included, each [N, D]: what a normaliser is fitted on. keys: these alone."""
    arrays = {**data.obs, "action": data.action}
    return {key: torch.tensor(arrays[key], device=device) for key in arrays if keys is None or key in keys}


def _entry(values: NDArray[Any], device: torch.device | str) -> Tensor:
    """Numbers as a copy on ``device``; pictures as they are, without a copy: nothing here writes into them."""
    if values.dtype != np.uint8:
        return torch.tensor(values, device=device)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # DemoData's arrays are read-only
        return torch.from_numpy(values)
