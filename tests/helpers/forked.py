"""``robopo`` commands in forks of this process: signals, exit codes and logs as of a new one, without its imports."""

from __future__ import annotations

import os
import signal
import sys
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import IO, Any, NoReturn

import torch

from robopo.cli.main import main

MODULE = (sys.executable, "-m", "robopo.cli.main")


class ForkedRobopo:
    """What the scheduler uses of subprocess.Popen, for commands that start with MODULE."""

    def __init__(self, command: Sequence[str], *, stdout: IO[bytes], env: Mapping[str, str], **_: Any) -> None:
        assert tuple(command[:3]) == MODULE, command
        self.returncode: int | None = None
        with warnings.catch_warnings():  # other threads, such as a test runner's, take no part in the command
            warnings.simplefilter("ignore", DeprecationWarning)
            self.pid = os.fork()
        if self.pid == 0:
            _become(lambda: main([*command[3:]]), stdout, env)

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def terminate(self) -> None:
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


def _become(command: Callable[[], int], stdout: IO[bytes], env: Mapping[str, str]) -> NoReturn:
    """In the child: its own session, signals and output; never back to the test."""
    code = 1
    try:
        os.setsid()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        for number in (1, 2):
            os.dup2(stdout.fileno(), number)
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
        os.environ.clear()
        os.environ.update(env)
        torch.set_num_threads(1)  # the parent's pool of threads isn't here
        code = command()
    except BaseException:  # noqa: BLE001 - whatever it is, the test must not go on in the child
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
