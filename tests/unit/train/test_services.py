from __future__ import annotations

import builtins
import errno
import io
import math
import signal
import sys
import types
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from rich.console import Console

from robopo.errors import MissingExtraError
from robopo.train.logger import METRICS, LoggerConfig, RunLogger, read_metrics
from robopo.train.metrics import to_scalars
from robopo.train.nan_guard import as_tree, find_non_finite
from robopo.train.progress import TrainProgress
from robopo.train.signals import StopSignal


class Losses(NamedTuple):
    actor: torch.Tensor
    entropy: float | None


def test_metrics_of_any_shape_become_floats() -> None:
    metrics = {
        "loss": Losses(torch.tensor(2.0), None),
        "kl": torch.tensor([[1.0, 3.0]]),
        "n": np.int64(4),
        "pair": (1.0, 2.0),
    }
    assert to_scalars(metrics) == {"kl/0": 1.0, "kl/1": 3.0, "loss/actor": 2.0, "n": 4.0, "pair/0": 1.0, "pair/1": 2.0}


def test_logger_writes_lines_and_tensorboard(tmp_path: Path) -> None:
    logger = RunLogger(tmp_path)
    logger.scalars({"loss": 0.5, "bad": math.nan}, 1)
    logger.close()
    logger.close()
    assert read_metrics(tmp_path / METRICS) == [{"step": 1, "loss": 0.5, "bad": None}]
    assert any((tmp_path / "tensorboard").iterdir())


def test_fresh_run_does_not_inherit_lines(tmp_path: Path) -> None:
    for _ in range(2):
        logger = RunLogger(tmp_path)
        logger.scalars({"loss": 1.0}, 1)
        logger.close()
    assert len(read_metrics(tmp_path / METRICS)) == 1


def test_missing_wandb_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def no_wandb(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "wandb":
            raise ImportError(name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", no_wandb)
    with pytest.raises(MissingExtraError, match=r"robopo\[wandb\]"):
        RunLogger(tmp_path, LoggerConfig(wandb=True))


class FakeWandb(types.ModuleType):
    """Remembers with what ``init`` was called; stands in for the run as well."""

    def __init__(self) -> None:
        super().__init__("wandb")
        self.ids: list[str] = []
        self.rows: list[tuple[dict[str, float], int]] = []

    def init(self, **settings: Any) -> FakeWandb:
        assert settings["resume"] == "allow"
        self.ids.append(settings["id"])
        return self

    def log(self, row: dict[str, float], *, step: int) -> None:
        self.rows.append((row, step))

    def finish(self) -> None: ...


def test_runs_have_their_own_wandb_page_and_keep_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    folders = (tmp_path / "lift" / "dppo", tmp_path / "push" / "dppo")
    for folder, resume_step in ((folders[0], None), (folders[1], None), (folders[0], 1), (folders[0], None)):
        logger = RunLogger(folder, LoggerConfig(wandb=True), resume_step=resume_step)
        logger.scalars({"loss": 0.5}, 2)
        logger.close()
    first, other, resumed, fresh = wandb.ids
    assert resumed == first
    assert len({first, other, fresh}) == 3
    assert wandb.rows[0] == ({"loss": 0.5}, 2)


def test_a_lost_wandb_id_starts_a_new_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = FakeWandb()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    (tmp_path / "wandb.json").write_text("{")
    for _ in range(2):
        RunLogger(tmp_path, LoggerConfig(wandb=True), resume_step=1).close()
    assert len(set(wandb.ids)) == 1


def test_closing_on_a_full_disk_only_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    logger = RunLogger(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr(logger._board, "close", full)
        logger.close()
    assert "No space left on device" in caplog.text
    logger.close()


def test_progress_prints_plain_lines_without_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=False, width=200)
    with TrainProgress("dppo", 3, start=1, console=console, every_s=0.0) as progress:
        progress.update(2, {"success": 0.5, "return": 1.25, "steps_per_s": 1234.0, "unknown": 1.0})
        progress.update(3, {"return": 2.0})
    first, second = out.getvalue().splitlines()
    assert first.startswith("dppo 2/3  eta ")
    assert first.endswith("success 50.0%  return 1.25  1,234 steps/s")
    assert "3/3" in second
    assert "success 50.0%" in second  # the last known value stays


def test_progress_draws_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=160)
    with TrainProgress("dppo", 2, console=console) as progress:
        progress.update(2, {"success": 1.0})
    assert "2/2" in out.getvalue()
    assert "success 100.0%" in out.getvalue()


def test_second_signal_aborts() -> None:
    # A shell's background jobs start with SIGINT ignored, and so would this test.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with pytest.raises(KeyboardInterrupt), StopSignal() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.received is signal.SIGINT
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_find_non_finite_names_path_and_count() -> None:
    tree = {
        "ok": torch.zeros(2),
        "ints": torch.tensor([1]),
        "a": [Losses(torch.tensor([1.0, math.inf, math.nan]), 0.0)],
    }
    assert find_non_finite(as_tree(tree), "batch") == "batch.a[0][0] (2 of 3 elements)"
    assert find_non_finite({"x": np.array([1.0]), "flag": True, "text": "nan"}) is None
    assert find_non_finite({"x": float("nan")}) == "x (1 of 1 elements)"
