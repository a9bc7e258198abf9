"""Runs commands side by side, in the order their needs allow, and remembers which are done.

``jobs.json`` in the folder holds what became of every job. It is written whole after each change, so a scheduler that
is killed loses nothing but the jobs that were running; the next one skips what is done and runs the rest.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import NamedTuple

from robopo.data.files import write_text
from robopo.errors import ConfigError, DataError
from robopo.train.signals import StopSignal

SCHEMA = 1
STATE = "jobs.json"
LOCK = "jobs.lock"
POLL_S = 0.05
ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")
"""Processes that share cores must not each start a thread per core."""


class Status(StrEnum):
    """What became of a job."""

    WAITING = "waiting"
    """Not started yet."""
    RUNNING = "running"
    """Its process lives."""
    DONE = "done"
    """Ended with exit code 0; never run again."""
    FAILED = "failed"
    """Ended with another exit code; run again by the next scheduler."""
    INTERRUPTED = "interrupted"
    """Stopped because the scheduler was; continued by the next one."""
    SKIPPED = "skipped"
    """Something that it needs failed."""


@dataclass(frozen=True, slots=True)
class Job:
    """One command."""

    name: str
    """Unique; also the path of its log: ``logs/<name>.log``."""
    command: tuple[str, ...]
    """What a first attempt runs."""
    settings: tuple[str, ...]
    """What decides its result. A job that is done, or stopped midway, under other settings is refused."""
    folder: Path
    """What it writes; removed before an attempt that can't continue an earlier one."""
    needs: tuple[str, ...] = ()
    """Names of jobs that must be done before."""
    kind: str = ""
    """Jobs of one kind take about equally long: that is how the remaining time is estimated."""
    resume: tuple[str, ...] = ()
    """What continues an earlier attempt; empty: nothing does."""
    can_resume: Callable[[], bool] = lambda: True
    """Whether an earlier attempt left enough for ``resume``."""


@dataclass(slots=True)
class _Entry:
    """What is known of a job, over all sessions."""

    status: Status = Status.WAITING
    settings: tuple[str, ...] = ()
    """Of the last attempt; empty before the first."""
    code: int | None = None
    seconds: float = 0.0


class Progress(NamedTuple):
    """How far the jobs are."""

    total: int
    done: int
    running: tuple[str, ...]
    failed: int
    """Failed, or skipped because of a failure."""
    eta_s: float | None
    """Estimated seconds left; None while a kind that is still to come was never finished."""


class Outcome(NamedTuple):
    """How a scheduler ended."""

    failed: dict[str, str]
    """Failed job -> the end of its log."""
    skipped: tuple[str, ...]
    """Jobs that needed a failed one."""
    stopped_by: signal.Signals | None
    """The signal that ended it early, or None."""


@dataclass(slots=True)
class _Process:
    job: Job
    handle: subprocess.Popen[bytes]
    began: float
    before_s: float
    """Seconds of earlier, interrupted attempts."""


@dataclass(slots=True)
class Scheduler:
    """Runs ``jobs`` with at most ``processes`` at a time."""

    folder: Path
    """Where state and logs go."""
    jobs: Sequence[Job]
    """All of them, each after those that it needs."""
    processes: int
    """How many run at a time."""
    on_change: Callable[[Progress], None] = lambda _: None
    """Called about every ``POLL_S`` seconds."""
    grace_s: float = 120.0
    """After a signal, how long processes may take to save before they are killed."""
    _entries: dict[str, _Entry] = field(default_factory=dict[str, _Entry], init=False)
    _others: dict[str, _Entry] = field(default_factory=dict[str, _Entry], init=False)
    """Jobs in the state that are not ours this time: kept as they are."""
    _running: list[_Process] = field(default_factory=list[_Process], init=False)
    _kill_at: float | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.processes < 1:
            raise ConfigError(f"processes={self.processes}: at least 1 is needed")
        seen: set[str] = set()
        for job in self.jobs:
            if job.name in seen:
                raise ConfigError(f"two jobs are called {job.name!r}")
            if missing := set(job.needs) - seen:
                raise ConfigError(f"job {job.name!r} needs {sorted(missing)}, which must come before it")
            seen.add(job.name)

    def run(self) -> Outcome:
        """Run everything that is not done. SIGINT and SIGTERM let the running processes save, and return.

        Raises ConfigError when a job was begun under other settings, or when the folder is in use; DataError when
        its state can't be read.
        """
        with _locked(self.folder / LOCK) as lock:
            self._read()
            try:
                with StopSignal() as stop:
                    while self._step(lock, stopping=stop.received is not None):
                        self.on_change(self._progress())
                        time.sleep(POLL_S)
            finally:
                self._kill()
            self.on_change(self._progress())
        by_status = {status: [name for name, e in self._entries.items() if e.status is status] for status in Status}
        return Outcome(
            failed={name: tail(log_path(self.folder, name)) for name in by_status[Status.FAILED]},
            skipped=tuple(by_status[Status.SKIPPED]),
            stopped_by=stop.received,
        )

    def _step(self, lock: int, *, stopping: bool) -> bool:
        """Notice what ended, start what can be; whether anything is left to wait for."""
        for process in [p for p in self._running if p.handle.poll() is not None]:
            self._running.remove(process)
            self._ended(process, stopping=stopping)
        if stopping:
            self._ask_to_stop()
            return bool(self._running)
        for job in self.jobs:  # needs come first, so one pass reaches everything behind a failure
            entry = self._entries[job.name]
            needed = {self._entries[name].status for name in job.needs}
            if entry.status not in (Status.WAITING, Status.INTERRUPTED):
                continue
            if needed & {Status.FAILED, Status.SKIPPED}:
                entry.status = Status.SKIPPED
            elif needed <= {Status.DONE} and len(self._running) < self.processes:
                self._start(job, entry, lock)
        return bool(self._running)

    def _start(self, job: Job, entry: _Entry, lock: int) -> None:
        resumes = entry.settings == job.settings and bool(job.resume) and job.can_resume()
        command = job.resume if resumes else job.command
        if not resumes and job.folder.exists():
            shutil.rmtree(job.folder)
        path = log_path(self.folder, job.name)
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab") as output:
            output.write(f"$ {shlex.join(command)}\n".encode())
            output.flush()
            handle = subprocess.Popen(  # noqa: S603 - commands that the caller made
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env={**os.environ, **ONE_THREAD, "COLUMNS": "120"},
                start_new_session=True,  # Ctrl-C reaches the scheduler alone, which asks each process once
                pass_fds=(lock,),  # a process that outlives a killed scheduler keeps the folder locked
            )
        self._running.append(_Process(job, handle, time.monotonic(), entry.seconds if resumes else 0.0))
        entry.status, entry.settings = Status.RUNNING, job.settings
        self._write()

    def _ended(self, process: _Process, *, stopping: bool) -> None:
        entry = self._entries[process.job.name]
        entry.seconds = process.before_s + time.monotonic() - process.began
        entry.code = process.handle.returncode
        entry.status = Status.DONE if entry.code == 0 else Status.INTERRUPTED if stopping else Status.FAILED
        self._write()

    def _ask_to_stop(self) -> None:
        now = time.monotonic()
        if self._kill_at is None:
            self._kill_at = now + self.grace_s
            for process in self._running:
                process.handle.terminate()
        elif now > self._kill_at:
            self._kill()

    def _kill(self) -> None:
        """After a second signal, an error, or the time of grace: no process outlives the scheduler."""
        for process in self._running:
            process.handle.kill()
        for process in self._running:
            process.handle.wait()
            self._ended(process, stopping=True)
        self._running.clear()

    def _read(self) -> None:
        """Take over what earlier schedulers of this folder left."""
        known = _read_entries(self.folder / STATE)
        for job in self.jobs:
            entry = known.get(job.name, _Entry())
            changed = bool(entry.settings) and entry.settings != job.settings
            if changed and entry.status in (Status.DONE, Status.INTERRUPTED):
                before, now = set(entry.settings), set(job.settings)
                raise ConfigError(
                    f"{job.name} was begun with other settings (then {sorted(before - now)}, now "
                    f"{sorted(now - before)}); choose another folder, or leave them as they were"
                )
            if entry.status in (Status.FAILED, Status.SKIPPED):
                entry.status = Status.WAITING
            self._entries[job.name] = entry
        self._others = {name: entry for name, entry in known.items() if name not in self._entries}

    def _write(self) -> None:
        jobs = {
            name: {
                "status": str(entry.status),
                "code": entry.code,
                "seconds": round(entry.seconds, 2),
                "settings": [*entry.settings],
            }
            for name, entry in {**self._others, **self._entries}.items()
        }
        write_text(self.folder / STATE, json.dumps({"schema": SCHEMA, "jobs": jobs}, indent=1) + "\n")

    def _progress(self) -> Progress:
        status = [entry.status for entry in self._entries.values()]
        return Progress(
            total=len(status),
            done=status.count(Status.DONE),
            running=tuple(process.job.name for process in self._running),
            failed=status.count(Status.FAILED) + status.count(Status.SKIPPED),
            eta_s=self._eta(),
        )

    def _eta(self) -> float | None:
        """Mean time of the finished jobs of each kind, spread over the processes."""
        times: dict[str, list[float]] = {}
        for job in self.jobs:
            if self._entries[job.name].status is Status.DONE:
                times.setdefault(job.kind, []).append(self._entries[job.name].seconds)
        spent = {p.job.name: p.before_s + time.monotonic() - p.began for p in self._running}
        left = 0.0
        for job in self.jobs:
            if self._entries[job.name].status in (Status.WAITING, Status.INTERRUPTED, Status.RUNNING):
                if job.kind not in times:
                    return None
                mean = sum(times[job.kind]) / len(times[job.kind])
                left += max(0.0, mean - spent.get(job.name, 0.0))
        return left / self.processes


def read_status(folder: Path) -> dict[str, Status]:
    """Job -> what became of it, from the state that a scheduler left in ``folder``; empty where there is none."""
    return {name: entry.status for name, entry in _read_entries(folder / STATE).items()}


def log_path(folder: Path, name: str) -> Path:
    """The file with everything that the job said, over all its attempts."""
    return folder / "logs" / f"{name}.log"


def tail(path: Path, lines: int = 8) -> str:
    """The last lines of a log that say something."""
    try:
        said = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        return f"(no log: {error})"
    return "\n".join([line.rstrip() for line in said if line.strip()][-lines:])


def _read_entries(path: Path) -> dict[str, _Entry]:
    if not path.exists():
        return {}
    try:
        tree = json.loads(path.read_text(encoding="utf-8"))
        if tree["schema"] != SCHEMA:
            raise DataError(f"{path} has schema {tree['schema']}, expected {SCHEMA}; start in another folder")
        entries = {
            name: _Entry(Status(row["status"]), tuple(row["settings"]), row["code"], float(row["seconds"]))
            for name, row in tree["jobs"].items()
        }
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, DataError):
            raise
        raise DataError(f"{path} can't be read ({error}); start in another folder") from error
    for entry in entries.values():
        if entry.status is Status.RUNNING:  # its scheduler was killed
            entry.status = Status.INTERRUPTED
    return entries


@contextmanager
def _locked(path: Path) -> Generator[int]:
    """Hold the folder's lock; it is free only when this process and all processes it started have ended."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise ConfigError(
                f"{path.parent} is in use by another robopo, or by jobs that it left behind; wait, or end them"
            ) from error
        yield file.fileno()
