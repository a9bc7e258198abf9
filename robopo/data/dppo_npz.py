"""Demonstrations in the npz layout of the DPPO code: ``states``, ``actions``, ``traj_lengths`` (images are left alone).

On disk they are scaled to [-1, 1] already, by x' = 2 (x - min) / (max - min + 1e-6) - 1 (Ren et al. 2024, released
code); the ``normalization.npz`` beside them (obs_min, obs_max, action_min, action_max) gives physical units back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopo.data.demo import DemoData
from robopo.errors import DataError, did_you_mean

EPSILON = 1e-6
NORMALIZED = "normalized"


def read_dppo_npz(
    path: Path,
    *,
    control_hz: float,
    normalization: Path | None = None,
    state_dim: int | None = None,
    max_episodes: int | None = None,
    task: str = "",
    action_mode: str | None = None,
) -> DemoData:
    """Read a ``train.npz`` of DPPO.

    normalization: undo the scaling with this file; without it values stay in [-1, 1] and action_mode is ``normalized``.
    state_dim: the first so many elements become ``state``, the rest ``environment_state`` (default: all ``state``).
    max_episodes: use the first so many, as the published code does.
    """
    arrays = _load(path, ("states", "actions", "traj_lengths"))
    states, actions = arrays["states"], arrays["actions"]
    lengths = arrays["traj_lengths"].astype(np.int64).reshape(-1)[:max_episodes]
    frames = int(lengths.sum())
    if len(lengths) == 0 or frames == 0:
        raise DataError(f"{path} holds zero demonstrations; check traj_lengths and max_episodes={max_episodes}")
    if frames > len(states) or len(states) != len(actions):
        raise DataError(
            f"{path}: traj_lengths add up to {frames} frames, states have {len(states)}, actions {len(actions)}"
        )
    states, actions = states[:frames], actions[:frames]
    if normalization is not None:
        limits = _load(normalization, ("obs_min", "obs_max", "action_min", "action_max"))
        states = _undo(states, limits["obs_min"], limits["obs_max"], "states")
        actions = _undo(actions, limits["action_min"], limits["action_max"], "actions")
    return DemoData(
        obs=_split(states, state_dim, path),
        action=actions,
        episode_index=np.repeat(np.arange(len(lengths)), lengths),
        control_hz=control_hz,
        action_mode=action_mode if action_mode is not None else ("" if normalization else NORMALIZED),
        task=task,
    )


def _load(path: Path, wanted: Sequence[str]) -> Mapping[str, NDArray[Any]]:
    try:
        with np.load(path, allow_pickle=False) as file:
            for name in wanted:
                if name not in file:
                    raise DataError(f"missing column {name!r} in {path}{did_you_mean(name, file)}")
            return {name: file[name] for name in wanted}
    except FileNotFoundError as error:
        raise DataError(f"{path} doesn't exist; give the path of a DPPO npz file") from error
    except (OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} is not a readable npz file without pickles ({error}); download it again") from error


def _undo(scaled: NDArray[Any], low: NDArray[Any], high: NDArray[Any], name: str) -> NDArray[Any]:
    if low.shape != scaled.shape[1:]:
        raise DataError(
            f"{name} have {scaled.shape[1:]} elements, the normalisation {low.shape}: files of different tasks?"
        )
    return (scaled.astype(np.float64) + 1) / 2 * (high - low + EPSILON) + low


def _split(states: NDArray[Any], state_dim: int | None, path: Path) -> dict[str, NDArray[Any]]:
    if state_dim is None:
        return {"state": states}
    if not 0 < state_dim < states.shape[1]:
        raise DataError(f"state_dim={state_dim}: states in {path} have {states.shape[1]} elements, split inside them")
    return {"state": states[:, :state_dim], "environment_state": states[:, state_dim:]}
