"""Metrics on disk: JSON lines and TensorBoard always, Weights & Biases on request.

``metrics.jsonl`` in the run folder has one object per step: ``{"step": 3, "loss": 0.1, ...}``. A run that resumes at
step n first drops what was logged after n, so the file reads as if the run had never stopped.
"""

from __future__ import annotations

import json
import logging
import math
import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from robopo.data.files import write_text
from robopo.errors import MissingExtraError

log = logging.getLogger(__name__)

METRICS = "metrics.jsonl"
WANDB = "wandb.json"
"""Holds the id of the run's Weights & Biases page."""


class Logger(Protocol):
    """Where the loop sends its numbers."""

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record ``values`` at ``step``; steps never go backwards."""
        ...

    def close(self) -> None:
        """Flush and release files; callable twice."""
        ...


@dataclass(frozen=True, slots=True)
class LoggerConfig:
    """Where metrics go besides ``metrics.jsonl`` and TensorBoard."""

    wandb: bool = False
    """Also log to Weights & Biases; needs the ``wandb`` extra."""
    wandb_project: str = "robopo"
    """Weights & Biases project name."""


class RunLogger:
    """Writes the metrics of one run. ``resume_step`` is the step of the loaded checkpoint, None for a fresh run."""

    def __init__(self, run_dir: Path, config: LoggerConfig | None = None, *, resume_step: int | None = None) -> None:
        # torch's TensorBoard writer takes a second to import
        from torch.utils.tensorboard.writer import SummaryWriter

        run_dir.mkdir(parents=True, exist_ok=True)
        config = config or LoggerConfig()
        self._wandb = _open_wandb(run_dir, config, resume_step) if config.wandb else None
        path = run_dir / METRICS
        truncate_metrics(path, -1 if resume_step is None else resume_step)
        self._file = path.open("a", encoding="utf-8")
        purge = None if resume_step is None else resume_step + 1
        self._board = SummaryWriter(str(run_dir / "tensorboard"), purge_step=purge)

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Record ``values`` at ``step`` everywhere. NaN and infinity become null in the JSON lines."""
        numbers = {name: float(value) for name, value in values.items()}
        line = {"step": step} | {name: value if math.isfinite(value) else None for name, value in numbers.items()}
        self._file.write(json.dumps(line) + "\n")
        self._file.flush()
        for name, value in numbers.items():
            self._board.add_scalar(name, value, step)
        if self._wandb is not None:
            self._wandb.log(numbers, step=step)

    def close(self) -> None:
        """Flush and close all of them; callable twice. A full disk is only a warning: close often follows an error."""
        for output in (self._file, self._board):
            try:
                output.close()
            except OSError as error:
                log.warning("the last metrics may be missing: %s", error)
        if self._wandb is not None:
            self._wandb.finish()
            self._wandb = None


def truncate_metrics(path: Path, last_step: int) -> None:
    """Drop the lines after ``last_step``, and a last line that a crash cut short. No file, nothing to do."""
    if not path.exists():
        return
    kept = [json.dumps(row) for row in read_metrics(path) if row["step"] <= last_step]
    temporary = path.with_suffix(".tmp")
    temporary.write_text("".join(line + "\n" for line in kept), encoding="utf-8")
    os.replace(temporary, path)


def read_metrics(path: Path) -> list[dict[str, Any]]:
    """Read ``metrics.jsonl``; a line that a crash cut short is skipped with a warning."""
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        try:
            row = json.loads(line)
            row["step"] = int(row["step"])
        except (ValueError, KeyError, TypeError):
            log.warning("%s:%d is not a complete line of metrics; skipped", path, number)
            continue
        rows.append(row)
    return rows


def _open_wandb(run_dir: Path, config: LoggerConfig, resume_step: int | None) -> Any:
    try:
        import wandb  # pyright: ignore[reportMissingImports]
    except ImportError as error:
        raise MissingExtraError("logger.wandb=true needs Weights & Biases; pip install 'robopo[wandb]'") from error
    page = _wandb_id(run_dir / WANDB, fresh=resume_step is None)
    return wandb.init(project=config.wandb_project, name=run_dir.name, id=page, dir=run_dir, resume="allow")


def _wandb_id(path: Path, *, fresh: bool) -> str:
    """The page of this run: random, since folders of different runs share names; kept in ``path`` for a resume."""
    if not fresh:
        try:
            return str(json.loads(path.read_text(encoding="utf-8"))["id"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("%s has no Weights & Biases id (%s); the run continues on a new page", path, error)
    page = uuid.uuid4().hex
    write_text(path, json.dumps({"id": page}))
    return page
