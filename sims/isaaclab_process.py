"""Isaac Lab in a process of its own, for the second simulator of a run: one process holds one environment."""

from __future__ import annotations

import contextlib
import importlib.util
import logging
import multiprocessing
import os
from collections.abc import Mapping
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sims.base import BoolArray, FloatArray, Seed, SimSpec, Step
from sims.isaaclab_vec import IsaacLabVec

log = logging.getLogger(__name__)

ANSWER_S = 900.0
"""How long one call may take; the first one compiles kernels."""


def open_isaaclab(task: str = "lift", num_envs: int = 64, **settings: Any) -> IsaacLabVec | IsaacLabProcess:
    """An ``IsaacLabVec`` with these settings: in this process where it is free, else in one of its own.

    Training opens two simulators (one to learn in, one to evaluate in). Raises what ``IsaacLabVec`` raises.
    """
    if importlib.util.find_spec("isaaclab") is not None and not IsaacLabVec.is_free():
        return IsaacLabProcess(task, num_envs, **settings)
    return IsaacLabVec(task, num_envs, **settings)


class IsaacLabProcess:
    """``VecSim`` that hands every call to an ``IsaacLabVec`` in a process of its own.

    Errors of the other side are raised here. Where it died or hangs, every further call is a RuntimeError.
    """

    def __init__(self, task: str, num_envs: int, **settings: Any) -> None:
        """settings: of ``IsaacLabVec``."""
        context = multiprocessing.get_context("spawn")
        self._pipe, theirs = context.Pipe()
        self._process = context.Process(target=serve, args=(theirs, task, num_envs, settings), daemon=True)
        self._process.start()
        theirs.close()
        self._num_envs = num_envs
        try:
            self._spec: SimSpec = self._answer()
        except BaseException:
            self.close()
            raise

    def _answer(self) -> Any:
        try:
            if not self._pipe.poll(ANSWER_S):
                raise RuntimeError(
                    f"Isaac Lab's process gave no answer within {ANSWER_S:.0f} s: close() this simulator"
                )
            good, value = self._pipe.recv()
        except (EOFError, OSError) as error:
            raise RuntimeError("Isaac Lab's process has ended: open a new simulator") from error
        if not good:
            raise value
        return value

    def _call(self, name: str, *args: Any, **named: Any) -> Any:
        try:
            self._pipe.send((name, args, named))
        except OSError as error:
            raise RuntimeError("Isaac Lab's process has ended: open a new simulator") from error
        return self._answer()

    @property
    def num_envs(self) -> int:
        """E."""
        return self._num_envs

    @property
    def spec(self) -> SimSpec:
        """Names, units, bounds, rates."""
        return self._spec

    @property
    def success(self) -> BoolArray:
        """See ``IsaacLabVec.success``."""
        return self._call("success")

    @property
    def diverged_count(self) -> int:
        """See ``IsaacLabVec.diverged_count``."""
        return self._call("diverged_count")

    def reset(self, seed: Seed = None, mask: BoolArray | None = None) -> dict[str, FloatArray]:
        """See ``IsaacLabVec.reset``."""
        return self._call("reset", seed, mask)

    def step(self, action: FloatArray, mask: BoolArray | None = None) -> Step:
        """See ``IsaacLabVec.step``."""
        return self._call("step", np.asarray(action), mask)

    def observe(self) -> dict[str, FloatArray]:
        """See ``IsaacLabVec.observe``."""
        return self._call("observe")

    def state(self) -> dict[str, NDArray[Any]]:
        """RuntimeError: not restorable."""
        return self._call("state")

    def restore(self, state: Mapping[str, NDArray[Any]]) -> None:
        """RuntimeError: not restorable."""
        self._call("restore", dict(state))

    def render(
        self, env: int = 0, *, camera: str | None = None, width: int = 320, height: int = 240
    ) -> NDArray[np.uint8]:
        """See ``IsaacLabVec.render``."""
        return self._call("render", env, camera=camera, width=width, height=height)

    def close(self) -> None:
        """End the process; callable twice."""
        with contextlib.suppress(OSError):
            self._pipe.send(("close", (), {}))
        self._pipe.close()
        self._process.join(10.0)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()


def serve(pipe: Connection, task: str, num_envs: int, settings: dict[str, Any]) -> None:
    """The other side: answer calls until ``close`` or until nobody is there."""
    if hasattr(os, "setsid"):
        os.setsid()  # a signal to the run's process group is the run's to answer: it may still want to evaluate
    try:
        sim = IsaacLabVec(task, num_envs, **settings)
    except Exception as error:  # noqa: BLE001  whatever it is, it is raised where the simulator was asked for
        pipe.send((False, error))
        return
    pipe.send((True, sim.spec))
    with contextlib.suppress(EOFError, OSError, KeyboardInterrupt):
        while True:
            name, args, named = pipe.recv()
            if name == "close":
                break
            try:
                found = getattr(sim, name)
                pipe.send((True, found(*args, **named) if callable(found) else found))
            except Exception as error:  # noqa: BLE001  as above
                pipe.send((False, error))
    sim.close()
