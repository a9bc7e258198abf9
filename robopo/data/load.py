"""Demonstrations from whatever holds them: a LeRobotDataset folder, robomimic's HDF5, or DPPO's npz."""

from __future__ import annotations

from pathlib import Path

from robopo.data.demo import DemoData
from robopo.data.dppo_npz import read_dppo_npz
from robopo.data.hdf5 import read_robomimic
from robopo.data.lerobot import read_lowdim


def load_demonstrations(path: Path, *, control_hz: float, state_dim: int | None = None) -> DemoData:
    """Read ``path`` by what it is; the readers' own functions have the finer settings.

    control_hz: rate of an npz, which doesn't say it; a folder and an HDF5 file know their own. state_dim: how many of
    an npz's numbers are proprioception (the rest become ``environment_state``). An npz in [-1, 1] is brought back to
    physical units by a ``normalization.npz`` beside it, where there is one. Raises DataError.
    """
    match path.suffix:
        case ".hdf5" | ".h5":
            return read_robomimic(path)
        case ".npz":
            beside = path.with_name("normalization.npz")
            normalization = beside if beside.exists() else None
            return read_dppo_npz(path, control_hz=control_hz, normalization=normalization, state_dim=state_dim)
        case _:
            return read_lowdim(path)
