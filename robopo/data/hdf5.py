"""Demonstrations in robomimic's HDF5 layout: ``data/demo_i/obs/<key>``, ``data/demo_i/actions``, ``mask/<filter>``.

Numbers, and pictures where they are asked for by name. Values stay as recorded: robosuite's quaternions are xyzw (the
element names say so), and its controller takes actions in [-1, 1], so give ``action_mode`` only when you know what the
recording controller meant.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopo.data.demo import Columns, DemoData, Episode
from robopo.errors import DataError, did_you_mean

ROBOT_KEYS = ("eef_pos", "eef_quat", "gripper_qpos")
ELEMENTS = {"pos": ("x", "y", "z"), "quat": ("x", "y", "z", "w")}


def read_robomimic(
    path: Path,
    *,
    entries: Mapping[str, Sequence[str]] | None = None,
    images: Collection[str] = (),
    filter_key: str | None = None,
    control_hz: float | None = None,
    action_mode: str = "",
) -> DemoData:
    """Read a robomimic file.

    images: pictures to read, ``image_<camera>`` for the recorded ``<camera>_image``; they stay uint8.

    entries: observation entry -> recorded keys, concatenated in that order. Default: ``state`` from each arm's
    end-effector position, quaternion and gripper, ``environment_state`` from ``object``. filter_key: a list under
    ``mask``, such as ``train``. control_hz: default the recorded ``control_freq``.
    """
    import h5py

    if not Path(path).exists():
        raise DataError(f"{path} doesn't exist; give the path of a robomimic HDF5 file")
    try:
        file = h5py.File(path, "r")
    except OSError as error:
        raise DataError(f"{path} is not a readable HDF5 file ({error}); download or copy it again") from error
    with file:
        demos = _demo_names(file, Path(path), filter_key)
        group: Any = file["data"]
        environment = json.loads(group.attrs.get("env_args", "{}"))
        settings: Mapping[str, Any] = environment.get("env_kwargs", {})
        rate = control_hz if control_hz is not None else settings.get("control_freq")
        if rate is None:
            raise DataError(f"{path} doesn't say its control frequency; pass control_hz (robomimic's own data: 20)")
        first = group[demos[0]]
        if "obs" not in first:
            raise DataError(
                f"{path} holds states only; extract observations with robomimic's dataset_states_to_obs first"
            )
        wanted = _default_entries(first["obs"]) if entries is None else entries
        sparse = not settings.get("reward_shaping", False)
        episodes = [_episode(name, group[name], wanted, images, sparse_reward=sparse) for name in demos]
        features = {entry: _columns(first["obs"], keys) for entry, keys in wanted.items()}
    return DemoData.from_episodes(
        episodes,
        control_hz=float(rate),
        action_mode=action_mode,
        task=str(environment.get("env_name", "")),
        features=features,
    )


def _demo_names(file: Any, path: Path, filter_key: str | None) -> list[str]:
    if "data" not in file or len(file["data"]) == 0:
        raise DataError(f"{path} holds zero demonstrations (no group data/demo_*); is it a robomimic file?")
    names = [str(name) for name in file["data"]]
    if filter_key is not None:
        masks = list(file["mask"]) if "mask" in file else []
        if filter_key not in masks:
            raise DataError(f"{path} has no filter {filter_key!r}{did_you_mean(filter_key, masks)}")
        names = [name.decode() if isinstance(name, bytes) else str(name) for name in file["mask"][filter_key][()]]
        if not names:
            raise DataError(f"filter {filter_key!r} of {path} chooses zero demonstrations; use another one")
    return sorted(names, key=lambda name: [int(digits) for digits in re.findall(r"\d+", name)])


def _default_entries(obs: Any) -> dict[str, list[str]]:
    state = [f"robot{i}_{key}" for i in range(2) for key in ROBOT_KEYS if f"robot{i}_{key}" in obs]
    if not state:
        raise DataError(
            f"missing column 'robot0_eef_pos'{did_you_mean('robot0_eef_pos', obs)}; choose columns with entries=..."
        )
    return {"state": state, **({"environment_state": ["object"]} if "object" in obs else {})}


def _episode(
    name: str, demo: Any, entries: Mapping[str, Sequence[str]], images: Collection[str], *, sparse_reward: bool
) -> Episode:
    cameras = {entry: f"{entry.removeprefix('image_')}_image" for entry in images}
    for key in cameras.values():
        if key not in demo["obs"]:
            raise DataError(
                f"{name} has no pictures {key!r}{did_you_mean(key, demo['obs'])}; extract them with robomimic's "
                "dataset_states_to_obs and --camera_names"
            )
    for key in (key for keys in entries.values() for key in keys):
        if key not in demo["obs"]:
            raise DataError(f"{name} has no column {key!r}{did_you_mean(key, demo['obs'])}")
    obs: dict[str, NDArray[Any]] = {
        entry: np.concatenate([_matrix(demo["obs"][key][()]) for key in keys], axis=1)
        for entry, keys in entries.items()
    }
    obs |= {entry: demo["obs"][key][()] for entry, key in cameras.items()}
    success = bool((demo["rewards"][()] > 0).any()) if sparse_reward and "rewards" in demo else None
    return Episode(obs, _matrix(demo["actions"][()]), success)


def _matrix(values: NDArray[Any]) -> NDArray[np.float32]:
    if values.dtype == np.uint8:
        raise DataError("an image column was chosen as numbers; name it in images=, as image_<camera>")
    return values.reshape(len(values), -1).astype(np.float32)


def _columns(obs: Any, keys: Sequence[str]) -> Columns:
    names: list[str] = []
    units: list[str] = []
    for key in keys:
        dim = int(np.prod(obs[key].shape[1:]))
        kind = key.rsplit("_", 1)[-1]
        elements = ELEMENTS.get(kind, ())
        names += [f"{key}_{elements[i] if len(elements) == dim else i}" for i in range(dim)]
        units += [{"pos": "m", "quat": "1"}.get(kind, "")] * dim
    return Columns(tuple(names), tuple(units))
