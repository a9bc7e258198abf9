"""Files and folders that appear complete or not at all."""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from robopo.errors import DataError


@contextmanager
def new_folder(path: Path, *, overwrite: bool = False) -> Generator[Path]:
    """Yield a temporary folder beside ``path`` that becomes ``path`` when the block ends without an error.

    An existing ``path`` is refused with DataError, or replaced at the end if ``overwrite``.
    """
    path = Path(path)
    if path.exists() and not overwrite:
        raise DataError(f"{path} exists already; choose another folder or pass overwrite=True")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    temporary.mkdir()
    try:
        yield temporary
        retired = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.old")
        if path.exists():
            path.rename(retired)
        try:
            temporary.rename(path)
        except OSError:
            if retired.exists():
                retired.rename(path)
            raise
        shutil.rmtree(retired, ignore_errors=True)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write ``text`` to ``path`` (UTF-8) through a temporary file, creating parent folders."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
    try:
        temporary.write_text(text, encoding="utf-8")
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
