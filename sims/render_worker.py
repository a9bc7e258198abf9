"""A process that draws, and the handle on it that its owner holds.

Processes, not threads: a thread would wait for the interpreter's lock several times a frame while the learner holds it,
Mesa's own threads can be switched off before its library is loaded, and a crashing GL driver ends only the drawing.
Every wait has a limit: a dead or silent process is replaced once and draws its share again, then it is an error.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pickle
import signal
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import mujoco
import numpy as np
from numpy.typing import NDArray

from sims.render_scene import Batch, DrawStyle, SceneRenderer

log = logging.getLogger(__name__)

ALIVE, DONE, FAILED = b".", b"D", b"E"
ALIVE_EVERY_S = 1.0
START_LIMIT_S = 120.0
PROGRAM = """
import socket, struct, sys
sys.path.insert(0, sys.argv[1])
handle = int(sys.argv[2])
try:
    from sims.render_worker import serve_forever
except Exception as error:
    text = f"{type(error).__name__}: {error}".encode()
    socket.socket(fileno=handle).sendall(b"E" + struct.pack("<Q", len(text)) + text)
    raise SystemExit(1)
serve_forever(handle)
"""
"""Importing mujoco fails already where MUJOCO_GL names a library that isn't there."""


class WorkerError(Exception):
    """The process died, fell silent, or said that it can't draw; the text tells which."""


class RenderWorker:
    """Owner's side of one process. ``submit`` hands over one batch, ``collect`` fetches its frames."""

    def __init__(
        self,
        model: mujoco.MjModel,
        cameras: Sequence[str],
        *,
        width: int,
        height: int,
        style: DrawStyle,
        timeout_s: float,
    ) -> None:
        """Starts the process; ``wait_ready`` tells whether it can draw. timeout_s: longest silence."""
        self._recipe = pickle.dumps((model, tuple(cameras), width, height, style))
        self._timeout_s = timeout_s
        self._task = b""
        self._start()

    def _start(self) -> None:
        self._socket, theirs = socket.socketpair()
        # Its own rasteriser threads slow Mesa down where there is one worker per core.
        environment = {"LP_NUM_THREADS": "0", **os.environ}
        root = str(Path(__file__).resolve().parents[1])
        command = [sys.executable, "-c", PROGRAM, root, str(theirs.fileno())]
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603  our own program
                command, env=environment, pass_fds=(theirs.fileno(),), stdin=subprocess.DEVNULL
            )
        self._ready = False
        self._send(self._recipe)

    @property
    def pid(self) -> int:
        """Number of the process, for messages and tests."""
        return self._process.pid

    def wait_ready(self) -> None:
        """RuntimeError, with what the process said, where it can't draw."""
        if self._ready:
            return
        try:
            self._answer(START_LIMIT_S)
        except WorkerError as failure:
            self.close()
            raise RuntimeError(f"a render process could not start: {failure}") from failure
        self._ready = True

    def submit(self, batch: Batch) -> None:
        """Hand over a batch; every array is copied."""
        self._task = pickle.dumps(batch, protocol=pickle.HIGHEST_PROTOCOL)
        self._send(self._task)

    def collect(self, frames: Sequence[NDArray[np.uint8]]) -> None:
        """Fill frames, one contiguous array [n, height, width, 3] per camera. RuntimeError after a second failure."""
        try:
            self._fetch(frames)
        except WorkerError as first:
            log.warning("render process %d failed (%s); a new one draws its share again", self.pid, first)
            self.close()
            self._start()
            self.wait_ready()
            self._send(self._task)
            try:
                self._fetch(frames)
            except WorkerError as second:
                self.close()
                raise RuntimeError(
                    f"render processes failed twice on the same batch: {first}; then: {second}. "
                    "num_workers=0 draws in this process and shows where"
                ) from second

    def close(self) -> None:
        """End the process; callable twice."""
        self._socket.close()  # it ends by itself when nobody listens
        if self._process.poll() is None:
            self._process.kill()
            self._process.wait()

    def _send(self, message: bytes) -> None:
        # A failure shows again, with its reason, when the answer is fetched.
        with contextlib.suppress(OSError):
            self._socket.settimeout(self._timeout_s)
            self._socket.sendall(struct.pack("<Q", len(message)) + message)

    def _answer(self, timeout_s: float) -> None:
        """Wait for DONE, as long as signs of life arrive."""
        self._socket.settimeout(timeout_s)
        try:
            while (kind := receive(self._socket, 1)) == ALIVE:
                pass
            if kind == FAILED:
                (length,) = struct.unpack("<Q", receive(self._socket, 8))
                raise WorkerError(receive(self._socket, length).decode())
        except TimeoutError as error:
            raise WorkerError(f"silent for {timeout_s:g} s") from error
        except OSError as error:
            raise WorkerError(f"ended unexpectedly, {self._exit_status()}") from error

    def _fetch(self, frames: Sequence[NDArray[np.uint8]]) -> None:
        self._answer(self._timeout_s)
        try:
            for array in frames:
                receive_into(self._socket, array)
        except OSError as error:
            raise WorkerError(f"ended while it handed over frames, {self._exit_status()}") from error

    def _exit_status(self) -> str:
        with contextlib.suppress(subprocess.TimeoutExpired):
            return f"exit status {self._process.wait(1.0)}"
        return "still running"


def receive_into(connection: socket.socket, array: NDArray[np.uint8]) -> None:
    """Fill a contiguous array; ConnectionError when the other side is gone."""
    view = memoryview(array.reshape(-1))
    while view:
        count = connection.recv_into(view)
        if count == 0:
            raise ConnectionError("closed by the other side")
        view = view[count:]


def receive(connection: socket.socket, length: int) -> bytes:
    """Exactly ``length`` bytes."""
    array = np.empty(length, dtype=np.uint8)
    receive_into(connection, array)
    return array.tobytes()


def serve_forever(handle: int) -> None:
    """The process's life: open a GL context, then draw batch after batch until the owner is gone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the owner's to handle
    with socket.socket(fileno=handle) as connection, contextlib.suppress(ConnectionError):
        model, cameras, width, height, style = _message(connection)
        try:
            renderer = SceneRenderer(model, cameras, width=width, height=height, style=style)
        except Exception as error:  # noqa: BLE001  the owner raises it
            _fail(connection, error)
            return
        connection.sendall(DONE)
        said = time.monotonic()

        def alive() -> None:
            nonlocal said
            if time.monotonic() - said > ALIVE_EVERY_S:
                said = time.monotonic()
                connection.sendall(ALIVE)

        while True:
            batch: Batch = _message(connection)
            said = time.monotonic()
            frames = np.empty((len(cameras), len(batch.physics), height, width, 3), dtype=np.uint8)
            try:
                renderer.draw(batch, list(frames), alive)
            except ConnectionError:
                raise
            except Exception as error:  # noqa: BLE001  the owner raises it
                _fail(connection, error)
            else:
                connection.sendall(DONE)
                connection.sendall(frames.reshape(-1).data)


def _message(connection: socket.socket) -> Any:
    (length,) = struct.unpack("<Q", receive(connection, 8))
    return pickle.loads(receive(connection, length))  # noqa: S301  from our own parent


def _fail(connection: socket.socket, error: Exception) -> None:
    text = f"{type(error).__name__}: {error}".encode()
    connection.sendall(FAILED + struct.pack("<Q", len(text)) + text)
