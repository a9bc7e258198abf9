"""Demonstrations from whatever holds them: a LeRobotDataset folder, robomimic's HDF5, or DPPO's npz."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from robopo.data.demo import DemoData
from robopo.data.dppo_npz import read_dppo_npz
from robopo.data.hdf5 import read_robomimic
from robopo.data.lerobot import read_lowdim
from robopo.data.ogbench import is_ogbench, read_ogbench
from robopo.errors import DataError


def load_demonstrations(
    path: Path, *, control_hz: float, state_dim: int | None = None, images: Collection[str] = ()
) -> DemoData:
    """Read ``path`` by what it is; the readers' own functions have the finer settings.

    control_hz: rate of an npz, which doesn't say it; a folder and an HDF5 file know their own. state_dim: how many of
    an npz's numbers are proprioception (the rest become ``environment_state``). An npz in [-1, 1] is brought back to
    physical units by a ``normalization.npz`` beside it, where there is one. images: pictures (``image_<camera>``) to
    read as well, from a folder or an HDF5 file. Raises DataError.
    """
    match path.suffix:
        case ".hdf5" | ".h5":
            return read_robomimic(path, images=images)
        case ".npz":
            if images:
                raise DataError(
                    f"{path}: pictures are not read from npz files; use a LeRobotDataset or robomimic's HDF5"
                )
            if path.is_file() and is_ogbench(path):
                return read_ogbench(path).to_demo(control_hz=control_hz)
            beside = path.with_name("normalization.npz")
            normalization = beside if beside.exists() else None
            return read_dppo_npz(path, control_hz=control_hz, normalization=normalization, state_dim=state_dim)
        case _:
            return read_lowdim(path, images=images)
