"""Settings of the whole suite: one thread per process, no hub, no display, no network beyond this machine."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Any

import pytest

# Before numpy and torch are imported anywhere.
os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["WANDB_MODE"] = "disabled"


@pytest.fixture(autouse=True, scope="session")
def no_network() -> Iterator[None]:
    """A connection to anywhere but this machine is an error of the test."""
    real = socket.socket.connect

    def connect(self: socket.socket, address: Any) -> None:
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in ("127.0.0.1", "::1", "localhost"):
            raise OSError(f"tests may not connect to {address}")
        real(self, address)

    socket.socket.connect = connect  # type: ignore[method-assign]
    yield
    socket.socket.connect = real  # type: ignore[method-assign]
