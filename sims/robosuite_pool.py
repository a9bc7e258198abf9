"""Worker processes that step environments in shared memory, and what happens when one dies or hangs."""

from __future__ import annotations

import logging
import multiprocessing
import time
from collections.abc import Mapping
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.sharedctypes import RawArray
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from sims.robosuite_worker import MakeEnv, Sizes, serve, shapes, views

log = logging.getLogger(__name__)

START_TIMEOUT_S = 300.0
MAX_LOSSES = 3
"""Calls in a row in which a worker was lost before the pool gives up."""
GOODBYE_S = 2.0


@dataclass(slots=True)
class Worker:
    """A process and the parent's end of its pipe."""

    process: Any
    pipe: Connection
    ready: bool = False


class WorkerPool:
    """``num_workers`` processes for ``num_envs`` environments; any of them can step any environment."""

    def __init__(self, make_env: MakeEnv, recipe: Any, sizes: Sizes, *, step_timeout_s: float) -> None:
        """Start the workers and wait until each has built its environment. RuntimeError or ImportError if one can't."""
        # spawn: a fork would copy the locks that torch's and MuJoCo's threads hold at that moment.
        self._context = multiprocessing.get_context("spawn")
        self._make_env, self._recipe, self._sizes = make_env, recipe, sizes
        self.step_timeout_s = step_timeout_s
        self._raw = {name: RawArray(kind, int(np.prod(shape))) for name, (shape, kind) in shapes(sizes).items()}
        self.shared = views(self._raw, sizes)
        self._workers: list[Worker | None] = [None] * sizes.num_workers
        self._losses = 0
        self.lost_count = 0
        """Workers that died or hung, since construction."""
        self.layout: Any = None
        """What the environments are like, once the first has been built."""
        try:
            for index in range(sizes.num_workers):
                self._start(index)
            for index in range(sizes.num_workers):
                self._greet(index)
        except OSError as error:
            self.close()
            raise RuntimeError(
                "a simulator process ended while it started: out of memory (use fewer num_workers), or a script "
                "without `if __name__ == '__main__':`"
            ) from error
        except BaseException:
            self.close()
            raise
        if self.layout.state_size > sizes.state or self.layout.obs_size > sizes.obs:
            self.close()
            raise RuntimeError(f"the scene needs more room than {sizes.state} numbers of state or {sizes.obs} of obs")

    @property
    def processes(self) -> list[int]:
        """Process ids of the running workers."""
        return [worker.process.pid for worker in self._workers if worker is not None]

    # ------------------------------------------------------------------ calls

    def step(self, rows: NDArray[np.int64]) -> dict[int, str]:
        """Step ``rows`` with their actions in shared memory; returns what went wrong, by row."""
        lost, troubles = self._share("step", [(row, 0) for row in rows.tolist()])
        if not lost:
            self._losses = 0
        return troubles

    def reset(self, rows: NDArray[np.int64], seeds: list[int]) -> None:
        """Begin episodes; RuntimeError where an environment can't."""
        work = list(zip(rows.tolist(), seeds, strict=True))
        while work:
            lost, troubles = self._share("reset", work)
            failed = [row for row in troubles if row not in lost]
            if failed:
                raise RuntimeError(f"environment {failed[0]} can't begin an episode: {troubles[failed[0]]}")
            work = [(row, seed) for row, seed in work if row in lost]

    def frame(self, row: int, camera: str | None, width: int, height: int) -> NDArray[np.uint8]:
        """One frame [height, width, 3]; ValueError for an unknown camera, RuntimeError where nothing can be drawn."""
        answers = self._ask({0: ("frame", (row, camera, width, height))})
        if answers[0] is None:
            raise RuntimeError("the process that was drawing died or hung; is there a GL library (MUJOCO_GL=osmesa)?")
        good, result = answers[0]
        if not good:
            raise result
        return result

    def _share(self, method: str, work: list[tuple[int, int]]) -> tuple[set[int], dict[int, str]]:
        """Hand ``work`` out evenly. Returns the rows of lost workers, and messages by row (of those too)."""
        count = min(len(self._workers), len(work))
        shares = [work[len(work) * w // count : len(work) * (w + 1) // count] for w in range(count)]
        answers = self._ask({index: (method, share) for index, share in enumerate(shares)})
        lost: set[int] = set()
        troubles: dict[int, str] = {}
        for index, share in enumerate(shares):
            answer = answers[index]
            if answer is None:
                lost |= {row for row, _ in share}
                troubles |= dict.fromkeys(lost, "its worker process died or hung")
            else:
                troubles |= answer[1]
        return lost, troubles

    def _ask(self, calls: Mapping[int, tuple[str, Any]]) -> dict[int, tuple[bool, Any] | None]:
        """Send each worker its call and wait for the answers; None from a worker that died or hung."""
        answers: dict[int, tuple[bool, Any] | None] = dict.fromkeys(calls)
        try:
            for index in calls:
                if self._workers[index] is None:
                    self._start(index)
            for index, call in calls.items():
                try:
                    self._greet(index).pipe.send(call)
                except OSError:
                    self._lose(index, "died")
            self._collect(answers)
        except BaseException:
            # An answer that arrives later would be taken for that of the next call.
            for index, answer in answers.items():
                if answer is None:
                    self._lose(index, "was interrupted")
            raise
        if any(answer is None for answer in answers.values()):
            self._losses += 1
            if self._losses >= MAX_LOSSES:
                self.close()
                raise RuntimeError(
                    f"simulator processes died or hung {MAX_LOSSES} times in a row. If the machine is out of memory, "
                    "use fewer num_workers; if a step is slow here, raise step_timeout_s "
                    f"({self.step_timeout_s:g} s); num_workers=1 shows whether it happens alone"
                )
        return answers

    def _collect(self, answers: dict[int, tuple[bool, Any] | None]) -> None:
        """Fill in the answers of the workers that are at work, and end those that hang."""
        beats = self.shared.beats
        waiting = {index: worker for index in answers if (worker := self._workers[index]) is not None}
        seen = beats.copy()
        since = dict.fromkeys(waiting, time.monotonic())
        while waiting:
            indices = {worker.pipe: index for index, worker in waiting.items()}
            for pipe in wait(list(indices), timeout=min(self.step_timeout_s, 1.0)):
                index = indices[cast("Connection", pipe)]
                worker = waiting.pop(index)
                try:
                    answers[index] = worker.pipe.recv()
                except (EOFError, OSError):
                    self._lose(index, "died")
            now = time.monotonic()
            for index in tuple(waiting):
                if beats[index] != seen[index]:
                    seen[index], since[index] = beats[index], now
                elif now - since[index] > self.step_timeout_s:
                    self._lose(index, f"took more than {self.step_timeout_s:g} s for one environment")
                    del waiting[index]

    # ------------------------------------------------------------------ processes

    def _start(self, index: int) -> None:
        ours, theirs = self._context.Pipe()
        args = (theirs, self._raw, self._sizes, index, self._make_env, self._recipe)
        process = self._context.Process(target=serve, args=args, name=f"robosuite-{index}", daemon=True)
        process.start()
        theirs.close()
        self._workers[index] = Worker(process, ours)

    def _greet(self, index: int) -> Worker:
        """The worker, once its environment is built. OSError where it died meanwhile and can be started again."""
        worker = self._workers[index]
        if worker is None:
            raise OSError("no such worker")
        if worker.ready:
            return worker
        if not worker.pipe.poll(START_TIMEOUT_S):
            raise RuntimeError(f"a simulator process wasn't ready after {START_TIMEOUT_S:g} s; use fewer num_workers")
        try:
            good, what = worker.pipe.recv()
        except EOFError as error:
            raise OSError("the worker ended while it started") from error
        if not good:
            raise (ImportError if what.startswith(("ImportError", "ModuleNotFound")) else RuntimeError)(what)
        self.layout, worker.ready = what, True
        return worker

    def _lose(self, index: int, why: str) -> None:
        worker, self._workers[index] = self._workers[index], None
        if worker is None:
            return
        self.lost_count += 1
        log.warning("simulator process %s %s; a new one takes its place", worker.process.pid, why)
        worker.process.kill()
        worker.process.join(GOODBYE_S)
        worker.pipe.close()

    def close(self) -> None:
        """End the workers; callable twice."""
        workers = [worker for worker in self._workers if worker is not None]
        self._workers = [None] * len(self._workers)
        for worker in workers:
            try:
                worker.pipe.send(None)
            except OSError:
                continue  # that worker is gone already
        deadline = time.monotonic() + GOODBYE_S
        for worker in workers:
            if worker.ready:
                worker.process.join(max(0.0, deadline - time.monotonic()))
            if worker.process.is_alive():
                worker.process.kill()
                worker.process.join(GOODBYE_S)
            worker.pipe.close()
