"""LeRobotDataset v3 folders, read and written with pyarrow alone.

Importing lerobot takes about ten seconds and its writer works frame by frame; demonstrations need neither. Pictures
are PNG (see ``lerobot_images``). The layout is the one of lerobot 0.6 (codebase version v3.0); a test opens our folders
with LeRobot's own loader. What v3 has no place for (action mode, task name, units) lies in ``meta/robopo.json``.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopo.data.demo import ACTION, Columns, DemoData, Float32Array, IntArray
from robopo.data.files import new_folder
from robopo.data.lerobot_images import (
    OBSERVATION,
    QUANTILES,
    column_name,
    encoded,
    image_feature,
    picture_stats,
    read_pictures,
    wanted_pictures,
)
from robopo.data.stats import column_stats
from robopo.errors import DataError, did_you_mean

CODEBASE_VERSION = "v3.0"
EXTRA_PATH = "meta/robopo.json"
EXTRA_SCHEMA = 1
STATE_KEYS = ("state", "environment_state")
SUCCESS = "next.success"
DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODES_PATH = "meta/episodes/chunk-000/file-000.parquet"
FILES_PER_CHUNK = 1000
FILE_SIZE_MB = 100


def write_lerobot(root: Path, data: DemoData, *, robot_type: str | None = None, overwrite: bool = False) -> Path:
    """Write ``data`` as a LeRobotDataset v3 folder that LeRobot opens; return ``root``.

    The folder appears complete or not at all. control_hz must be a whole number (v3 stores integer fps).
    """
    fps = round(data.control_hz)
    if abs(fps - data.control_hz) > 1e-6:
        raise DataError(
            f"control_hz={data.control_hz}: LeRobotDataset v3 stores whole frames per second; resample first"
        )
    columns = _frame_columns(data, fps)
    pictures = {column_name(key): data.obs[key] for key in data.images}
    png = {name: encoded(values) for name, values in pictures.items()}
    files = _file_of_each_episode(data, columns, png)
    with new_folder(Path(root), overwrite=overwrite) as folder:
        _write_frames(folder, data, columns, png, files)
        _write_tasks(folder, data)
        _write_episodes(folder, data, columns, pictures, files)
        stats = {name: _lerobot_stats(values) for name, values in columns.items()}
        _write_json(folder / "meta/stats.json", stats | {n: picture_stats(values) for n, values in pictures.items()})
        _write_json(folder / "meta/info.json", _info(data, columns, fps, robot_type))
        _write_json(folder / EXTRA_PATH, _extra(data))
    return Path(root)


def read_lowdim(
    root: Path,
    *,
    keys: Sequence[str] | None = None,
    images: Collection[str] = (),
    exclude_episodes: Collection[int] = (),
    action_mode: str | None = None,
) -> DemoData:
    """Read the numeric columns of any LeRobotDataset v3 folder into memory; videos are left alone.

    images: pictures to read as well, under the names ``image_<camera>``; they stay uint8. keys:
    observation entries without the ``observation.`` prefix (default: ``state`` and ``environment_state``, whichever
    exist). exclude_episodes: episode numbers to leave out; the rest are renumbered. action_mode overrides
    the recorded one.
    """
    root = Path(root)
    info, extra = _read_info(root), _read_extra(root)
    features: Mapping[str, Any] = info["features"]
    wanted = _wanted_columns(features, keys)
    success_known = SUCCESS in features
    shapes = wanted_pictures(features, images)
    table = _read_frames(root, [*wanted, *shapes, "episode_index", *([SUCCESS] if success_known else [])])
    episode = _numbers(table, "episode_index").astype(np.int64).reshape(-1)
    keep = ~np.isin(episode, list(exclude_episodes))
    kept_episodes, renumbered = np.unique(episode[keep], return_inverse=True)
    if len(kept_episodes) == 0:
        raise DataError(
            f"{root} holds zero demonstrations after leaving out {sorted(exclude_episodes)}; record some first"
        )
    arrays = {name.removeprefix(OBSERVATION): _numbers(table, name)[keep] for name in wanted}
    success = None
    if success_known:
        flags = _numbers(table, SUCCESS).reshape(-1)[keep].astype(np.bool_)
        success = np.bincount(renumbered, weights=flags) > 0
    units: Mapping[str, Sequence[str]] = extra.get("units", {})
    return DemoData(
        obs={key: value for key, value in arrays.items() if key != ACTION} | read_pictures(table, shapes, keep),
        action=arrays[ACTION],
        episode_index=renumbered.astype(np.int64),
        control_hz=float(info["fps"]),
        action_mode=action_mode if action_mode is not None else extra.get("action_mode", ""),
        task=extra.get("task", ""),
        instruction=_first_instruction(root),
        features={
            name.removeprefix(OBSERVATION): _named_columns(name, features[name], units.get(name)) for name in wanted
        },
        success=success,
    )


# Writing


def _frame_columns(data: DemoData, fps: int) -> dict[str, NDArray[Any]]:
    """Every parquet column as [N, D], in LeRobot's order."""
    total = data.num_frames
    frame = np.arange(total) - data.starts[data.episode_index]
    last = np.zeros(total, np.bool_)
    last[data.starts + data.lengths - 1] = True
    columns: dict[str, NDArray[Any]] = {
        name: data.obs[name.removeprefix(OBSERVATION)] for name in _data_columns(data)[:-1]
    }
    columns[ACTION] = data.action
    columns["next.done"] = last
    if data.success is not None:
        columns[SUCCESS] = last & data.success[data.episode_index]
    columns["timestamp"] = (frame / fps).astype(np.float32)
    columns["frame_index"] = frame.astype(np.int64)
    columns["episode_index"] = data.episode_index
    columns["index"] = np.arange(total, dtype=np.int64)
    columns["task_index"] = np.zeros(total, np.int64)
    return {name: value.reshape(total, -1) for name, value in columns.items()}


def _file_of_each_episode(
    data: DemoData, columns: Mapping[str, NDArray[Any]], png: Mapping[str, Sequence[bytes]]
) -> IntArray:
    """[M] number of the data file that holds each episode: a new one about every FILE_SIZE_MB."""
    bytes_per_frame = sum(value.itemsize * value.shape[1] for value in columns.values())
    bytes_per_frame += sum(len(picture) for pictures in png.values() for picture in pictures) // data.num_frames
    return (data.starts * bytes_per_frame // (FILE_SIZE_MB * 2**20)).astype(np.int64)


def _write_frames(
    folder: Path,
    data: DemoData,
    columns: Mapping[str, NDArray[Any]],
    png: Mapping[str, Sequence[bytes]],
    files: IntArray,
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    def arrow(values: NDArray[Any]) -> Any:
        # LeRobot stores features of shape [1] as scalars and longer ones as fixed-size lists.
        flat = pa.array(np.ascontiguousarray(values).reshape(-1))
        return flat if values.shape[1] == 1 else pa.FixedSizeListArray.from_arrays(flat, values.shape[1])

    file_of_frame = files[data.episode_index]
    for number in np.unique(files):
        rows = file_of_frame == number
        path = folder / DATA_PATH.format(**_chunk_and_file(int(number)))
        path.parent.mkdir(parents=True, exist_ok=True)
        table = {name: arrow(value[rows]) for name, value in columns.items()}
        for name, pictures in png.items():
            content = pa.array([pictures[row] for row in np.flatnonzero(rows)], pa.binary())
            paths = pa.nulls(len(content), pa.string())
            table[name] = pa.StructArray.from_arrays([content, paths], names=["bytes", "path"])
        pq.write_table(pa.table(table), path)


def _write_tasks(folder: Path, data: DemoData) -> None:
    import pandas as pd  # LeRobot reads the task sentence from a pandas index

    index = pd.Index([data.instruction or data.task or "demonstrate"], name="task")
    path = folder / "meta/tasks.parquet"
    path.parent.mkdir(parents=True, exist_ok=True)
    pd.DataFrame({"task_index": [0]}, index=index).to_parquet(path)


def _write_episodes(
    folder: Path,
    data: DemoData,
    columns: Mapping[str, NDArray[Any]],
    pictures: Mapping[str, NDArray[Any]],
    files: IntArray,
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sentence = data.instruction or data.task or "demonstrate"
    rows: list[dict[str, Any]] = []
    for episode, (start, length) in enumerate(zip(data.starts.tolist(), data.lengths.tolist(), strict=True)):
        place = _chunk_and_file(int(files[episode]))
        row: dict[str, Any] = {
            "episode_index": episode,
            "tasks": [sentence],
            "length": length,
            "data/chunk_index": place["chunk_index"],
            "data/file_index": place["file_index"],
            "dataset_from_index": start,
            "dataset_to_index": start + length,
        }
        for name, values in {**columns, **pictures}.items():
            summary = picture_stats if name in pictures else _lerobot_stats
            stats = summary(values[start : start + length])
            row |= {f"stats/{name}/{statistic}": value for statistic, value in stats.items()}
        rows.append({**row, "meta/episodes/chunk_index": 0, "meta/episodes/file_index": 0})
    path = folder / EPISODES_PATH
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(rows), path)


def _lerobot_stats(values: NDArray[Any]) -> dict[str, Any]:
    levels = np.quantile(values.astype(np.float64), QUANTILES, axis=0)
    quantiles = {f"q{round(100 * q):02d}": level.tolist() for q, level in zip(QUANTILES, levels, strict=True)}
    return {**column_stats(values).to_json(), **quantiles}


def _info(data: DemoData, columns: Mapping[str, NDArray[Any]], fps: int, robot_type: str | None) -> dict[str, Any]:
    named = {name: data.features[name.removeprefix(OBSERVATION)].names for name in _data_columns(data)}
    features: dict[str, Any] = {
        name: {
            "dtype": value.dtype.name,
            "shape": [value.shape[1]],
            "names": list(named[name]) if name in named else None,
        }
        for name, value in columns.items()
    }
    features |= {column_name(key): image_feature(data.obs[key]) for key in data.images}
    return {
        "codebase_version": CODEBASE_VERSION,
        "fps": fps,
        "features": features,
        "total_episodes": data.num_episodes,
        "total_frames": data.num_frames,
        "total_tasks": 1,
        "chunks_size": FILES_PER_CHUNK,
        "data_files_size_in_mb": FILE_SIZE_MB,
        "video_files_size_in_mb": 200,
        "data_path": DATA_PATH,
        "video_path": None,
        "robot_type": robot_type,
        "splits": {"train": f"0:{data.num_episodes}"},
    }


def _extra(data: DemoData) -> dict[str, Any]:
    return {
        "schema": EXTRA_SCHEMA,
        "task": data.task,
        "action_mode": data.action_mode,
        "units": {name: list(data.features[name.removeprefix(OBSERVATION)].units) for name in _data_columns(data)},
        "fingerprint": data.fingerprint,
    }


def _data_columns(data: DemoData) -> list[str]:
    return [*(OBSERVATION + key for key in data.obs if key not in data.images), ACTION]


def _chunk_and_file(number: int) -> dict[str, int]:
    return {"chunk_index": number // FILES_PER_CHUNK, "file_index": number % FILES_PER_CHUNK}


def _write_json(path: Path, tree: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(tree, indent=2), encoding="utf-8")


# Reading


def _read_json(path: Path, hint: str) -> dict[str, Any]:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise DataError(f"{path} doesn't exist; {hint}") from error
    except json.JSONDecodeError as error:
        raise DataError(
            f"{path} is not valid JSON ({error}); the dataset folder is damaged, copy or record it again"
        ) from error


def _read_info(root: Path) -> dict[str, Any]:
    info = _read_json(
        root / "meta/info.json", f"is {root} the folder of a LeRobotDataset (with meta/ and data/ in it)?"
    )
    version = str(info.get("codebase_version", "unknown"))
    if not version.startswith("v3."):
        raise DataError(
            f"{root} has LeRobotDataset format {version}, expected {CODEBASE_VERSION}; convert it with "
            "`python -m lerobot.scripts.convert_dataset_v21_to_v30`"
        )
    return info


def _read_extra(root: Path) -> dict[str, Any]:
    path = root / EXTRA_PATH
    if not path.exists():
        return {}  # recorded by another tool
    extra = _read_json(path, "")
    if extra.get("schema") != EXTRA_SCHEMA:
        raise DataError(f"{path} has schema {extra.get('schema')}, expected {EXTRA_SCHEMA}; update robopo")
    return extra


def _wanted_columns(features: Mapping[str, Any], keys: Sequence[str] | None) -> list[str]:
    """Parquet names of the observation entries and the action; each must be a numeric vector."""
    vectors = {
        name
        for name, feature in features.items()
        if len(feature["shape"]) == 1 and feature["dtype"] not in ("video", "image", "string")
    }
    if keys is None:
        names = [OBSERVATION + key for key in STATE_KEYS if OBSERVATION + key in vectors]
        if not names:
            raise DataError(f"missing column 'observation.state'{did_you_mean('observation.state', features)}")
    else:
        names = [OBSERVATION + key.removeprefix(OBSERVATION) for key in keys]
    for name in [*names, ACTION]:
        if name not in vectors:
            raise DataError(f"missing column {name!r} (a numeric vector){did_you_mean(name, features)}")
    return [*names, ACTION]


def _read_frames(root: Path, names: Sequence[str]) -> Any:
    import pyarrow as pa

    paths = sorted((root / "data").glob("*/*.parquet"))
    if not paths:
        raise DataError(
            f"{root} has no file data/chunk-*/file-*.parquet: zero demonstrations; record or copy the data first"
        )
    wanted = [*names, "index"]
    try:
        tables = [_columns_of_file(path, wanted) for path in paths]
        return pa.concat_tables(tables).sort_by("index")
    except (pa.ArrowException, OSError) as error:
        raise DataError(
            f"can't read columns {list(names)} under {root / 'data'} ({error}); the dataset is damaged, copy it again"
        ) from error


def _columns_of_file(path: Path, wanted: Sequence[str]) -> Any:
    import pyarrow.parquet as pq

    present = pq.read_schema(path).names
    for name in wanted:
        if name not in present:
            raise DataError(
                f"missing column {name!r} in {path}, though meta/info.json declares it{did_you_mean(name, present)}"
            )
    return pq.read_table(path, columns=list(wanted))


def _numbers(table: Any, name: str) -> Float32Array | NDArray[Any]:
    """Column ``name`` as [N, D]; a missing value becomes NaN, which DemoData then reports with its place."""
    import pyarrow as pa

    column = table.column(name).combine_chunks()
    rows = len(column)
    if pa.types.is_fixed_size_list(column.type) or pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        values = column.flatten()
        if rows and len(values) % rows:
            raise DataError(f"column {name!r} has rows of different lengths; the dataset is damaged, record it again")
    else:
        values = column
    return values.to_numpy(zero_copy_only=False).reshape(rows, -1)


def _named_columns(name: str, feature: Mapping[str, Any], units: Sequence[str] | None) -> Columns:
    """Element names as LeRobot writes them: a list, a dict holding lists, or nothing (then numbered)."""
    names = feature.get("names")
    if isinstance(names, Mapping):
        names = [element for group in names.values() for element in (group if isinstance(group, list) else [group])]
    dim = int(feature["shape"][0])
    if not names or len(names) != dim:
        names = [f"{name.removeprefix(OBSERVATION)}_{i}" for i in range(dim)]
    return Columns(tuple(str(element) for element in names), tuple(units or ("",) * dim))


def _first_instruction(root: Path) -> str:
    import pyarrow.parquet as pq

    path = root / "meta/tasks.parquet"
    if not path.exists():
        return ""
    table = pq.read_table(path)
    column = next((name for name in ("task", "__index_level_0__") if name in table.column_names), None)
    return "" if column is None or table.num_rows == 0 else str(table.column(column)[0].as_py())
