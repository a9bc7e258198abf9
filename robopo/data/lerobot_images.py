"""Pictures in LeRobotDataset v3 folders: PNG inside the parquet files, LeRobot's ``image`` features.

Lossless, so that a policy is trained on what its simulator or camera shows; LeRobot's other form, video, is smaller but
changes pixels. The entry ``image_<camera>`` is the column ``observation.images.<camera>``.
"""

from __future__ import annotations

import io
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from robopo.data.demo import BoolArray
from robopo.errors import DataError, did_you_mean

OBSERVATION = "observation."
IMAGES = "observation.images."
PREFIX = "image_"
PNG_LEVEL = 1
"""zlib's effort, 0 to 9: rendered pictures hardly get smaller above 1, and take several times as long."""
QUANTILES = (0.01, 0.10, 0.50, 0.90, 0.99)
SAMPLED = 200
"""Pictures that statistics look at, evenly spaced."""


def column_name(entry: str) -> str:
    """``image_front`` -> ``observation.images.front``."""
    return IMAGES + entry.removeprefix(PREFIX)


def image_feature(pictures: NDArray[np.uint8]) -> dict[str, Any]:
    """What info.json says of pictures [N, height, width, 3]."""
    return {"dtype": "image", "shape": list(pictures.shape[1:]), "names": ["height", "width", "channels"]}


def encoded(pictures: NDArray[np.uint8]) -> list[bytes]:
    """[N, height, width, 3] -> N PNG files."""
    from PIL import Image

    found: list[bytes] = []
    for picture in pictures:
        with io.BytesIO() as file:
            Image.fromarray(picture).save(file, format="PNG", compress_level=PNG_LEVEL)
            found.append(file.getvalue())
    return found


def picture_stats(pictures: NDArray[np.uint8]) -> dict[str, Any]:
    """Per channel, in [0, 1], each [3, 1, 1], as LeRobot writes them; of some of the pictures."""
    step = -(-len(pictures) // SAMPLED)
    flat = pictures[::step].reshape(-1, 3).astype(np.float64) / 255.0
    stats = {"min": flat.min(0), "max": flat.max(0), "mean": flat.mean(0), "std": flat.std(0)}
    levels = np.quantile(flat, QUANTILES, axis=0)
    stats |= {f"q{round(100 * q):02d}": level for q, level in zip(QUANTILES, levels, strict=True)}
    return {
        **{name: value.reshape(3, 1, 1).tolist() for name, value in stats.items()},
        "count": [len(pictures[::step])],
    }


def wanted_pictures(features: Mapping[str, Any], entries: Collection[str]) -> dict[str, tuple[int, int, int]]:
    """Columns of ``entries`` and their (height, width, 3). Raises DataError for one that isn't there as pictures."""
    found: dict[str, tuple[int, int, int]] = {}
    known = [name for name in features if name.startswith(IMAGES)]
    for entry in entries:
        name = column_name(entry)
        if name not in features:
            raise DataError(f"missing pictures {name!r}{did_you_mean(name, known)}")
        feature = features[name]
        if feature["dtype"] != "image":
            raise DataError(
                f"{name!r} is stored as {feature['dtype']}, robopo reads PNG pictures (dtype image): record it again "
                "with robopo collect, or in LeRobot with use_videos=False"
            )
        shape = tuple(int(size) for size in feature["shape"])
        if len(shape) == 3 and shape[0] == 3 and shape[2] != 3:  # some tools write channels first
            shape = (shape[1], shape[2], shape[0])
        if len(shape) != 3 or shape[2] != 3:
            raise DataError(f"{name!r} has shape {list(feature['shape'])}, expected [height, width, 3]")
        found[name] = (shape[0], shape[1], 3)
    return found


def read_pictures(
    table: Any, shapes: Mapping[str, tuple[int, int, int]], keep: BoolArray
) -> dict[str, NDArray[np.uint8]]:
    """The columns of ``shapes`` where ``keep`` [N], decoded: entry -> uint8 [n, height, width, 3]."""
    rows = np.flatnonzero(keep)
    found: dict[str, NDArray[np.uint8]] = {}
    for name, shape in shapes.items():
        column = table.column(name).combine_chunks()
        content = column.field("bytes") if hasattr(column, "field") else column
        out = np.empty((len(rows), *shape), np.uint8)
        for n, row in enumerate(rows.tolist()):
            out[n] = _decoded(content[row].as_py(), name, row, shape)
        found[PREFIX + name.removeprefix(IMAGES)] = out
    return found


def _decoded(content: bytes | None, name: str, row: int, shape: tuple[int, int, int]) -> NDArray[np.uint8]:
    from PIL import Image

    if content is None:
        raise DataError(f"picture {row} of {name!r} is not in the parquet file; copy the dataset with its pictures")
    try:
        with Image.open(io.BytesIO(content)) as image:
            picture = np.asarray(image.convert("RGB"))
    except OSError as error:
        raise DataError(f"picture {row} of {name!r} can't be read ({error}); the dataset is damaged") from error
    if picture.shape != shape:
        raise DataError(f"picture {row} of {name!r} is {list(picture.shape)}, info.json says {list(shape)}")
    return picture
