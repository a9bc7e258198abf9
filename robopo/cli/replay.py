"""``robopo doctor --replay``: what was not finite in a dump, and whether it happens again."""

from __future__ import annotations

import warnings
from pathlib import Path

import torch
from rich.console import Console

from robopo.cli.configs import SavedRun, to_object
from robopo.cli.train import Run, prepare, read_saved, saved_node
from robopo.errors import CheckpointError, NonFiniteError
from robopo.train.checkpoint import Checkpoint, load_checkpoint
from robopo.train.nan_guard import NanGuard, find_non_finite


def replay(folder: Path) -> int:
    """Describe the dump, then do its step again with torch's anomaly detection; 0 when it turned out finite, else 1."""
    dump = load_checkpoint(folder)
    console = Console(highlight=False, soft_wrap=True)
    console.print(f"{folder}: step {dump.step}", markup=False)
    console.print(f"reported: {dump.state.get('error', 'nothing: this is a checkpoint, not a dump')}", markup=False)
    for part in ("batch", "learner"):
        found = find_non_finite(dump.state.get(part, {}), part)
        console.print(f"{part}: {found or 'all finite'}", markup=False)
    if "batch" not in dump.state:
        raise CheckpointError(f"{folder} holds no batch: the step failed before there was one, or this is no dump")
    saved = read_saved(folder.resolve().parents[1])
    try:
        metrics = _again(dump, saved)
    except (NonFiniteError, RuntimeError) as error:  # anomaly detection raises RuntimeError naming the operation
        console.print(f"again: {error}", markup=False)
        return 1
    console.print(f"this time all was finite: {metrics}", markup=False)
    return 0


def _again(dump: Checkpoint, saved: SavedRun) -> dict[str, float]:
    config = to_object(saved_node(saved, ["device=cpu", "logger.wandb=false"]))
    run = Run(config, dump.folder.resolve().parents[1], dump, saved)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Anomaly Detection")  # that it is slow: here it is wanted
        anomaly = torch.autograd.detect_anomaly(check_nan=True)
    with prepare(run) as prepared, anomaly:
        return prepared.stage.replay(dump.state, NanGuard(run.folder))
