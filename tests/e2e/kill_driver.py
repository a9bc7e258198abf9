"""Trains the toy run in child processes that get SIGKILL, until one survives: ``kill_driver.py ROOT SEED...``.

Imports once and forks per attempt. An attempt dies either after a random time or at a random file operation of the
checkpoint writer: half-way through a file, before or after the manifest, around the rename, while pruning.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from torch.utils.tensorboard.writer import SummaryWriter  # noqa: F401 - imported before the forks, it is slow

from robopo.train import checkpoint as writer
from robopo.train.checkpoint import latest_checkpoint, load_checkpoint
from robopo.train.logger import RunLogger
from robopo.train.loop import LoopConfig, train
from robopo.train.nan_guard import NanGuard
from tests.unit.train.toys import on_policy_stage

ITERATIONS = 40
KILLS = 8


def train_once(run_dir: Path) -> None:
    """One attempt: resume where possible, and go on to the end."""
    folder = latest_checkpoint(run_dir)
    checkpoint = load_checkpoint(folder) if folder else None
    logger = RunLogger(run_dir, resume_step=checkpoint.step if checkpoint else None)
    config = LoopConfig(iterations=ITERATIONS, checkpoint_every=1, keep_checkpoints=2)
    train(on_policy_stage(), config, run_dir=run_dir, logger=logger, resume=checkpoint)
    logger.close()


def spoil_writer(operation: int) -> None:
    """Slow the checkpoint writer down, and SIGKILL this process at its given file operation (0: never)."""
    count = 0

    def counted(original: Callable[..., Any]) -> Callable[..., Any]:
        def wrapped(path: Any, *rest: Any) -> Any:
            nonlocal count
            count += 1
            time.sleep(0.001)
            if count == operation:
                if original is real_write:
                    original(path, rest[0][: len(rest[0]) // 2])
                os.kill(os.getpid(), signal.SIGKILL)
            return original(path, *rest)

        return wrapped

    real_write = writer._write_bytes
    writer._write_bytes = counted(real_write)
    writer._fsync = counted(writer._fsync)
    writer._discard = counted(writer._discard)
    os.replace = counted(os.replace)  # type: ignore[assignment]


def main(run_dir: Path, seed: int) -> int:
    """Return the number of attempts that were killed."""
    rng = random.Random(seed)
    on_policy_stage().step(NanGuard(run_dir))  # torch imports a good part of itself at the first optimiser step
    for killed in range(KILLS + 1):
        operation, delay_s = rng.randrange(2, 60), rng.uniform(0.005, 0.1)
        by_time, last = rng.random() < 0.4, killed == KILLS
        child = os.fork()
        if child == 0:
            spoil_writer(0 if last or by_time else operation)
            train_once(run_dir)
            os._exit(0)
        if not last and by_time:
            time.sleep(delay_s)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status) != 0:
                raise SystemExit(f"attempt {killed} failed with status {os.WEXITSTATUS(status)}")
            return killed
    raise SystemExit("no attempt survived")


if __name__ == "__main__":
    for text in sys.argv[2:]:
        print(main(Path(sys.argv[1]) / text, int(text)))
