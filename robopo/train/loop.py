"""The training loop: step, log, evaluate, save, and continue bit for bit after any interruption."""

from __future__ import annotations

import logging
import signal
import time
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from robopo.errors import CheckpointError, ConfigError, NonFiniteError
from robopo.train.checkpoint import Checkpoint, save_checkpoint, set_aside_after
from robopo.train.logger import Logger
from robopo.train.nan_guard import NanGuard
from robopo.train.progress import TrainProgress
from robopo.train.seeding import global_rng_state, restore_global_rng
from robopo.train.signals import StopSignal
from robopo.train.stages import Stage
from robopo.train.tree import Tree

log = logging.getLogger(__name__)

Evaluate = Callable[[int], Mapping[str, float]]
"""Gets the number of finished iterations and returns metrics; it must not change the learner or its simulator."""


@dataclass(frozen=True, slots=True)
class LoopConfig:
    """How long to train, and how often to look and to save."""

    iterations: int = 100
    """Iterations in all, those before a resume included; 0 or more."""
    eval_every: int = 10
    """Evaluate after every so many iterations and after the last one; 0 never."""
    eval_first: bool = True
    """Also evaluate before the first iteration: the baseline."""
    checkpoint_every: int = 10
    """Save after every so many iterations; the last one is always saved."""
    keep_checkpoints: int = 3
    """How many checkpoints of the run stay on the disk; at least 1."""

    def __post_init__(self) -> None:
        if self.iterations < 0 or self.eval_every < 0:
            raise ConfigError(f"iterations={self.iterations}, eval_every={self.eval_every}: both must be 0 or more")
        if self.checkpoint_every < 1 or self.keep_checkpoints < 1:
            raise ConfigError(
                f"checkpoint_every={self.checkpoint_every}, keep_checkpoints={self.keep_checkpoints}: "
                "both must be 1 or more; a run without checkpoints can't be evaluated"
            )


@dataclass(frozen=True, slots=True)
class TrainResult:
    """Where a run stands when the loop returns."""

    iterations: int
    """Finished iterations, those before a resume included."""
    elapsed_s: float
    """Wall-clock time of all sessions of the run together, in seconds."""
    checkpoint: Path
    """The newest checkpoint folder."""
    stopped_by: signal.Signals | None
    """The signal that ended the run early, or None."""

    @property
    def exit_code(self) -> int:
        """0 when complete, else 128 + signal number (130 SIGINT, 143 SIGTERM)."""
        return 0 if self.stopped_by is None else 128 + self.stopped_by


def train(
    stage: Stage,
    config: LoopConfig,
    *,
    run_dir: Path,
    logger: Logger,
    evaluate: Evaluate | None = None,
    resume: Checkpoint | None = None,
    title: str = "train",
) -> TrainResult:
    """Run ``stage`` up to ``config.iterations``, from ``resume`` or from the start.

    A checkpoint of step n holds the state after n iterations. SIGINT and SIGTERM finish the running iteration, save and
    return. Raises NonFiniteError with the path of a replayable dump, CheckpointError when saving fails, OSError when
    the log can't be written (after an attempt to save); earlier checkpoints stay usable in all cases.
    """
    guard = NanGuard(run_dir)
    done, elapsed_s = _restore(stage, resume, run_dir) if resume is not None else (0, 0.0)
    began = time.monotonic() - elapsed_s
    saved = resume.folder if resume is not None else None
    if saved is None and config.eval_first and evaluate is not None:
        logger.scalars(evaluate(0), 0)
    with StopSignal() as stop, TrainProgress(title, config.iterations, start=done) as progress:
        while done < config.iterations and stop.received is None:
            metrics = _guarded_step(stage, done, guard)
            done += 1
            saved = None
            if evaluate is not None and stop.received is None and _due(done, config.eval_every, config.iterations):
                metrics |= evaluate(done)
            metrics["elapsed_s"] = time.monotonic() - began
            with _saved_if_log_fails(stage, done, metrics["elapsed_s"], run_dir, config):
                logger.scalars(metrics, done)
            progress.update(done, metrics)
            if _due(done, config.checkpoint_every, config.iterations) or stop.received is not None:
                saved = _save(stage, done, time.monotonic() - began, run_dir, config)
        if saved is None:  # nothing to do at all, or a signal between two checkpoints
            saved = _save(stage, done, time.monotonic() - began, run_dir, config)
        return TrainResult(done, time.monotonic() - began, saved, stop.received)


def _due(done: int, every: int, total: int) -> bool:
    return every > 0 and (done % every == 0 or done == total)


def _guarded_step(stage: Stage, iteration: int, guard: NanGuard) -> dict[str, float]:
    try:
        return stage.step(guard)
    except NonFiniteError as error:
        raise guard.dump(error, iteration, stage.evidence(), write_policy=stage.export) from error


@contextmanager
def _saved_if_log_fails(
    stage: Stage, done: int, elapsed_s: float, run_dir: Path, config: LoopConfig
) -> Generator[None]:
    """A log that can't be written ends the run, but what was learned is worth more: try to save it first."""
    try:
        yield
    except OSError:
        try:
            folder = _save(stage, done, elapsed_s, run_dir, config)
            log.warning("the metrics of step %d can't be written; the training state is saved in %s", done, folder)
        except CheckpointError as error:
            log.warning("the metrics of step %d can't be written, nor its checkpoint: %s", done, error)
        raise


def _save(stage: Stage, done: int, elapsed_s: float, run_dir: Path, config: LoopConfig) -> Path:
    state: dict[str, Tree] = {
        "stage": stage.state(),
        "global_rng": global_rng_state(),
        "iterations": done,
        "elapsed_s": elapsed_s,
    }
    return save_checkpoint(run_dir, done, state, write_policy=stage.export, keep=config.keep_checkpoints)


def _restore(stage: Stage, checkpoint: Checkpoint, run_dir: Path) -> tuple[int, float]:
    """Put the state back; return finished iterations and elapsed seconds."""
    try:
        stage.restore(checkpoint.state["stage"])
        restore_global_rng(checkpoint.state["global_rng"])
        done, elapsed_s = int(checkpoint.state["iterations"]), float(checkpoint.state["elapsed_s"])
    except (KeyError, RuntimeError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{checkpoint.folder} does not fit this run ({type(error).__name__}: {error}); resume with the "
            "configuration that the run was started with"
        ) from error
    set_aside_after(run_dir, done)
    log.info("resumed %s after %d iterations", checkpoint.folder, done)
    return done, elapsed_s
