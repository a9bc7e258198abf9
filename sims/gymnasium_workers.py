"""Gymnasium environments shared out to worker processes. A worker that dies, hangs or raises is replaced."""

from __future__ import annotations

import contextlib
import itertools
import logging
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims.gymnasium_envs import LocalEnvs, Outcome
from sims.gymnasium_facts import Entries, Facts, Pictures, empty
from sims.gymnasium_make import EnvRecipe

log = logging.getLogger(__name__)

MAX_FAILURES = 3
"""Failures of one worker without a good step between them, after which something is wrong with more than an episode."""
START_TIMEOUT_S = 120.0
"""For importing packages and building environments."""
READY, STOP = "ready", "stop"


class _Worker:
    """One process and its pipe; environments begin .. end - 1."""

    def __init__(self, recipe: EnvRecipe, begin: int, end: int) -> None:
        self.begin, self.end = begin, end
        self.failures = 0
        self._recipe = recipe
        self.start()

    def start(self) -> None:
        """A new process; it answers ``READY`` once its environments stand."""
        # spawn: a fork would copy the locks that torch's and MuJoCo's threads hold at that moment.
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        args = (theirs, self._recipe, self.end - self.begin)
        self.process: Any = context.Process(target=_serve, args=args, daemon=True)
        self.process.start()
        theirs.close()
        self.ready = False
        self.gone = ""
        """Why nothing more can be asked of this process; an answer may still lie in its pipe."""

    def kill(self) -> None:
        """End the process at once, whatever it hangs in."""
        self.pipe.close()
        self.process.kill()
        self.process.join()


class _WorkerError(Exception):
    """Why a worker gave no answer."""


class WorkerEnvs:
    """n environments shared out evenly to worker processes, each a LocalEnvs.

    When a worker dies, gives no answer within ``timeout_s`` or raises while it steps, all its environments are
    ``broken`` (or ``lost``, those outside the step) and a new process takes its place. RuntimeError when a worker
    fails MAX_FAILURES times without a good step between.
    """

    def __init__(self, recipe: EnvRecipe, count: int, workers: int, *, facts: Facts, timeout_s: float) -> None:
        workers = min(workers, count)
        starts = [count * w // workers for w in range(workers + 1)]
        self.facts, self.lost, self.silent = facts, list[int](), ()
        self._timeout_s = timeout_s
        self._workers = [_Worker(recipe, a, b) for a, b in itertools.pairwise(starts)]

    @property
    def processes(self) -> list[Any]:
        """The worker processes, in the order of their environments."""
        return [worker.process for worker in self._workers]

    def reset(self, rows: Sequence[int], seeds: Sequence[int], *, ended: bool = False) -> Entries:  # noqa: ARG002
        """As LocalEnvs; ``rows`` ascending. A worker that fails here begins again."""
        obs = empty(self.facts.entries, len(rows))
        todo, values = np.arange(len(rows)), np.asarray(seeds, np.int64)
        self.lost = []
        while len(todo):
            answers = self._ask("reset", np.asarray(rows)[todo], values[todo])
            failed = np.zeros(len(todo), dtype=bool)
            for places, answer in answers:
                if answer is None:
                    failed[places] = True
                    continue
                for name, first in answer.items():
                    obs[name][todo[places]] = first
            todo = todo[failed]
        self.lost = [row for row in self.lost if row not in set(rows)]
        return obs

    def step(self, rows: Sequence[int], action: NDArray[Any]) -> Outcome:
        """As LocalEnvs; ``rows`` ascending. Environments of a worker that failed are ``broken``."""
        count = len(rows)
        flags = np.zeros((5, count), dtype=bool)
        out = Outcome(empty(self.facts.entries, count), np.zeros(count), *flags)
        self.lost = []
        for places, answer in self._ask("step", np.asarray(rows), action):
            if answer is None:
                out.broken[places] = True
                continue
            for name, seen in answer.obs.items():
                out.obs[name][places] = seen
            for ours, theirs in zip(out[1:], answer[1:], strict=True):
                ours[places] = theirs
        return out

    def idle(self, rows: Sequence[int]) -> Entries:
        """Never needed: nothing moves that isn't asked to."""
        raise NotImplementedError

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """As LocalEnvs; RuntimeError when a worker fails."""
        parts = [self._sure(worker, "snapshot") for worker in self._workers]
        return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}

    def resume(self, rows: Sequence[int], saved: Mapping[str, NDArray[Any]]) -> None:
        """As LocalEnvs; ``rows`` ascending. RuntimeError when a worker fails."""
        for worker, places in self._shares(np.asarray(rows)):
            part = {name: array[places] for name, array in saved.items()}
            self._sure(worker, "resume", (np.asarray(rows)[places] - worker.begin).tolist(), part)

    def frame(self, row: int, camera: str | None, width: int, height: int) -> Pictures:
        """As LocalEnvs; RuntimeError when the worker fails."""
        worker = next(w for w in self._workers if w.begin <= row < w.end)
        return self._sure(worker, "frame", row - worker.begin, camera, width, height)

    def close(self) -> None:
        """End the workers; callable twice."""
        for worker in self._workers:
            with contextlib.suppress(OSError):  # that worker is gone already
                worker.pipe.send((STOP, ()))
        deadline = time.monotonic() + 5.0
        for worker in self._workers:
            worker.process.join(max(0.0, deadline - time.monotonic()))
            worker.kill()
        self._workers.clear()

    def _shares(self, rows: NDArray[np.int64]) -> list[tuple[_Worker, NDArray[np.int64]]]:
        """(worker, places in ``rows`` that are its) of every worker with work."""
        shares = [(w, np.flatnonzero((rows >= w.begin) & (rows < w.end))) for w in self._workers]
        return [share for share in shares if len(share[1])]

    def _ask(self, method: str, rows: NDArray[np.int64], values: NDArray[Any]) -> list[tuple[NDArray[np.int64], Any]]:
        """(places in ``rows``, answer) of every worker with work; None of one that failed, and was replaced."""
        shares = self._shares(rows)
        problems: dict[int, str] = {}
        for worker, places in shares:  # all are asked before any is waited for
            try:
                self._send(worker, method, ((rows[places] - worker.begin).tolist(), values[places]))
            except _WorkerError as failure:
                problems[worker.begin] = str(failure)
        deadline = time.monotonic() + self._timeout_s
        answers: list[tuple[NDArray[np.int64], Any]] = []
        hopeless: list[str] = []
        for worker, places in shares:
            answer = None
            try:
                if worker.begin in problems:
                    raise _WorkerError(problems[worker.begin])
                answer = self._receive(worker, deadline)
                worker.failures = 0 if method == "step" else worker.failures
            except _WorkerError as failure:
                hopeless += self._replace(worker, str(failure))
            answers.append((places, answer))
        if hopeless:
            raise RuntimeError(hopeless[0])
        return answers

    def _sure(self, worker: _Worker, method: str, *args: Any) -> Any:
        """The answer of one worker; one that raised goes on as it was."""
        try:
            self._send(worker, method, args)
            return self._receive(worker, time.monotonic() + self._timeout_s)
        except _WorkerError as failure:
            raise RuntimeError(
                f"a simulator process failed: {failure}; vectorization=sync shows where, and fewer num_workers need "
                "less memory"
            ) from failure

    def _send(self, worker: _Worker, method: str, args: tuple[Any, ...]) -> None:
        if not worker.ready and not worker.gone:
            self._receive(worker, time.monotonic() + max(START_TIMEOUT_S, self._timeout_s))
            worker.ready = True
        if worker.gone:
            raise _WorkerError(worker.gone)
        try:
            worker.pipe.send((method, args))
        except OSError as error:
            raise _WorkerError(_ended(worker)) from error

    def _receive(self, worker: _Worker, deadline: float) -> Any:
        try:
            if not worker.pipe.poll(max(0.0, deadline - time.monotonic())):
                worker.gone = f"no answer within step_timeout_s={self._timeout_s:g} s"
                raise _WorkerError(worker.gone)
            good, value = worker.pipe.recv()
        except (EOFError, OSError) as error:
            raise _WorkerError(_ended(worker)) from error
        if not good:
            raise _WorkerError(value)
        return value

    def _replace(self, worker: _Worker, why: str) -> list[str]:
        """A new process for ``worker``; what to say when that has not helped before."""
        worker.failures += 1
        worker.kill()
        worker.start()
        self.lost = [*self.lost, *range(worker.begin, worker.end)]
        where = f"environments {worker.begin} to {worker.end - 1}"
        log.warning("the simulator process of %s failed (%s) and is started again; its episodes end here", where, why)
        if worker.failures < MAX_FAILURES:
            return []
        advice = (
            "vectorization=sync shows where; fewer num_workers need less memory, and a slow environment a larger "
            "step_timeout_s"
        )
        return [f"the simulator process of {where} failed {worker.failures} times in a row, last: {why}. {advice}"]


def _ended(worker: _Worker) -> str:
    worker.process.join(1.0)
    worker.gone = f"the process ended, exit code {worker.process.exitcode}"
    return worker.gone


def _serve(pipe: Connection, recipe: EnvRecipe, count: int) -> None:
    """Answer method calls until STOP or the end of the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle; it ends this process
    threading.Thread(target=_die_with_parent, daemon=True).start()
    try:
        envs = LocalEnvs(recipe, count)
    except Exception as error:  # noqa: BLE001  whatever an environment raises is the parent's to report
        pipe.send((False, f"{type(error).__name__}: {error}"))
        return
    try:
        pipe.send((True, READY))
        while (call := pipe.recv())[0] != STOP:
            method, args = call
            try:
                pipe.send((True, getattr(envs, method)(*args)))
            except Exception as error:  # noqa: BLE001  as above
                pipe.send((False, f"{type(error).__name__}: {error}"))
    except (EOFError, OSError):
        pass  # the parent is gone
    finally:
        envs.close()


def _die_with_parent() -> None:
    """Also while a step hangs, when nobody reads the pipe."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
