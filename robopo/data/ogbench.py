"""Offline data in OGBench's npz layout: play data of its arm, or what ``robopo collect out=….npz`` recorded.

Every episode lies in consecutive rows; ``terminals`` marks its last one, whose observation is only the next one of the
row before. ``rewards`` and ``masks`` (0: no value beyond this step) speak of the row's own step; rows of the benchmark
have them once a task has been chosen (``python -m sims.ogbench_data --relabel``).
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopo.data.demo import DemoData
from robopo.errors import DataError, did_you_mean

Float32Array = NDArray[np.float32]

ROWS = ("observations", "actions", "terminals")
STATE = "state"
CONTROL_HZ = 20.0
"""Of OGBench's arm."""


class MaskMode(StrEnum):
    """Beyond which steps there is no value."""

    TASK = "task"
    """Where the task is met, as the benchmark defines it; the end of a recording is not an end."""
    TRAJ_END = "traj_end"
    """At the end of every trajectory and nowhere else, as released code of QGF has it."""


@dataclass(frozen=True, slots=True, eq=False)
class OfflineData:
    """N transitions of M trajectories, one after the other. Arrays are read-only.

    reward and mask are None where no task has been chosen. extras: further columns by name, such as ``qpos``.
    """

    obs: Float32Array
    """[N, O], before the action."""
    action: Float32Array
    """[N, A]."""
    next_obs: Float32Array
    """[N, O], after it."""
    reward: Float32Array | None
    """[N]."""
    mask: Float32Array | None
    """[N], 1 or 0: whether the value of next_obs counts."""
    episode_index: NDArray[np.int64]
    """[N], 0..M-1."""
    extras: Mapping[str, NDArray[Any]]
    """Columns [N, ...]."""
    fingerprint: str
    """SHA-256 of the file's columns: names, types, shapes and values in the order of names."""

    def __len__(self) -> int:
        return len(self.action)

    @property
    def ends(self) -> NDArray[np.bool_]:
        """[N] whether this is the last transition of its trajectory: no window goes beyond it."""
        return np.append(self.episode_index[1:] != self.episode_index[:-1], True)

    @property
    def returns(self) -> NDArray[np.float64]:
        """[M] sums of rewards. DataError where no task has been chosen."""
        if self.reward is None:
            raise DataError("these data have no rewards: choose a task (python -m sims.ogbench_data --relabel FILE)")
        return np.bincount(self.episode_index, weights=self.reward).astype(np.float64)

    def to_demo(self, *, task: str = "", control_hz: float = CONTROL_HZ, action_mode: str = "native") -> DemoData:
        """The same frames to clone: one entry ``state``, no rewards."""
        return DemoData(
            obs={STATE: self.obs},
            action=self.action,
            episode_index=self.episode_index,
            control_hz=control_hz,
            action_mode=action_mode,
            task=task,
        )


def read_ogbench(path: Path, *, mask_mode: MaskMode | str = MaskMode.TASK, clip: float | None = None) -> OfflineData:
    """Read one file of the layout above.

    clip: largest magnitude of an action, for policies that can't reach the bounds (1 - 1e-5 is usual). Raises DataError
    for a file that doesn't exist, lacks columns, holds NaN, or where ``traj_end`` meets no rewards.
    """
    columns = _load(path)
    mode = MaskMode(mask_mode)
    last = columns["terminals"].astype(bool).reshape(-1)
    if not last.any() or not last[-1]:
        raise DataError(f"{path}: the last row isn't the end of an episode (terminals); was the file cut off?")
    rows, after = ~last, np.append(False, ~last[:-1])
    trajectory = np.cumsum(np.append(0, last[:-1].astype(np.int64)))[rows]
    if not rows.any():
        raise DataError(f"{path}: every episode has one row only, so there is no transition")
    index = np.unique(trajectory, return_inverse=True)[1].astype(np.int64)  # without episodes of one row
    reward, mask = columns.pop("rewards", None), columns.pop("masks", None)
    action = columns.pop("actions")[rows].astype(np.float32)
    if clip is not None:
        action = np.clip(action, -clip, clip)
    obs = columns.pop("observations").astype(np.float32)
    columns.pop("terminals")
    if mask is not None and mode is MaskMode.TRAJ_END:
        mask = np.ones(len(last), np.float32)
        mask[:-1][last[1:]] = 0.0
    data = OfflineData(
        obs=_frozen(obs[rows]),
        action=_frozen(action),
        next_obs=_frozen(obs[after]),
        reward=None if reward is None else _frozen(reward[rows].astype(np.float32)),
        mask=None if mask is None else _frozen(mask[rows].astype(np.float32)),
        episode_index=_frozen(index),
        extras={name: _frozen(values[rows]) for name, values in columns.items()},
        fingerprint=fingerprint(_load(path)),
    )
    _check_finite(path, data)
    return data


def write_ogbench(
    path: Path,
    *,
    obs: NDArray[Any],
    action: NDArray[Any],
    reward: NDArray[Any],
    episode_index: NDArray[Any],
    final_obs: NDArray[Any],
    terminated: NDArray[Any],
    overwrite: bool = False,
) -> str:
    """Write transitions with rewards and masks; the fingerprint. The file appears complete or not at all.

    obs [N, O], action [N, A], reward [N], episode_index [N], final_obs [M, O] after each episode's last action,
    terminated [M]: whether the episode ended there (mask 0) rather than its time.
    """
    if path.exists() and not overwrite:
        raise DataError(f"{path} exists; choose another name, or overwrite=true")
    lengths = np.bincount(episode_index, minlength=len(final_obs))
    places = np.cumsum(lengths)  # a row is put in behind each episode
    ends = np.append(episode_index[1:] != episode_index[:-1], True)
    masks = 1.0 - (ends & np.asarray(terminated, bool)[episode_index])
    columns: dict[str, NDArray[Any]] = {
        "observations": np.insert(obs, places, final_obs, axis=0).astype(np.float32),
        "actions": np.insert(action, places, 0.0, axis=0).astype(np.float32),
        "terminals": np.insert(np.zeros(len(action), np.bool_), places, True),
        "rewards": np.insert(reward, places, 0.0).astype(np.float32),
        "masks": np.insert(masks, places, 0.0).astype(np.float32),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.npz")
    savez: Any = np.savez_compressed  # its own keywords hide behind the columns' names
    savez(unfinished, **columns)
    os.replace(unfinished, path)
    return fingerprint(columns)


def is_ogbench(path: Path) -> bool:
    """Whether an .npz has the layout's columns."""
    with np.load(path, allow_pickle=False) as file:
        return all(name in file for name in ROWS)


def fingerprint(columns: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 over name, type, shape and values of each column, in the order of names."""
    digest = hashlib.sha256()
    for name, array in sorted(columns.items()):
        digest.update(f"{name} {array.dtype.str} {array.shape}\n".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()


def _load(path: Path) -> dict[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            columns = {name: file[name] for name in file.files}
    except FileNotFoundError as error:
        raise DataError(f"{path} doesn't exist; make it with python -m sims.ogbench_data or robopo collect") from error
    except (OSError, ValueError) as error:
        raise DataError(f"{path} is not a readable npz file without pickles ({error}); make it again") from error
    for name in ROWS:
        if name not in columns:
            raise DataError(f"missing column {name!r} in {path}{did_you_mean(name, columns)}")
    count = len(columns["terminals"])
    for name, array in columns.items():
        if len(array) != count:
            raise DataError(f"{path}: {name!r} has {len(array)} rows, 'terminals' {count}; lengths must agree")
    if columns["observations"].ndim != 2 or columns["actions"].ndim != 2:
        shapes = f"{columns['observations'].shape} and {columns['actions'].shape}"
        raise DataError(f"{path}: observations and actions are {shapes}, expected [rows, elements]; no pictures")
    return columns


def _frozen(array: NDArray[Any]) -> NDArray[Any]:
    array.setflags(write=False)
    return array


def _check_finite(path: Path, data: OfflineData) -> None:
    arrays = {"observations": data.obs, "actions": data.action, "observations (next)": data.next_obs}
    arrays |= {name: values for name, values in (("rewards", data.reward), ("masks", data.mask)) if values is not None}
    for name, values in arrays.items():
        bad = ~np.isfinite(values)
        if bad.any():
            row = int(np.argwhere(bad)[0][0])
            raise DataError(f"{path}: {name!r} has {int(bad.sum())} NaN or infinite values, first in transition {row}")
