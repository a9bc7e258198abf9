"""Checkpoint folders that are either whole or absent.

``run_dir/checkpoints/step_00000012/`` is a policy folder (``robopo.policies.io``) plus the training state and a
manifest with the size and SHA-256 of each file. It is written under a temporary name, flushed to the disk and then
renamed; the manifest tells a folder that the disk damaged later from a good one.
"""

from __future__ import annotations

import errno
import hashlib
import json
import logging
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from robopo.errors import CheckpointError
from robopo.train.tree import Tree, decode_tree, encode_tree

log = logging.getLogger(__name__)

SCHEMA = 1
MANIFEST = "manifest.json"
STATE_TENSORS = "training_state.safetensors"
STATE_JSON = "training_state.json"
_PREFIX = "step_"
_TEMPORARY = ".tmp_"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A verified checkpoint: where it lies, its step and its training state."""

    folder: Path
    step: int
    state: dict[str, Tree]


def save_checkpoint(
    run_dir: Path,
    step: int,
    state: dict[str, Tree],
    *,
    write_policy: Callable[[Path], None],
    keep: int = 3,
) -> Path:
    """Write ``run_dir/checkpoints/step_<step>`` atomically, drop all but the ``keep`` newest, return the folder.

    write_policy gets an empty folder and puts the policy's own files there. On any error the temporary folder is
    removed and earlier checkpoints stay; a full disk is a CheckpointError that says so.
    """
    root = run_dir / "checkpoints"
    temporary = root / f"{_TEMPORARY}{_name(step)}"
    try:
        root.mkdir(parents=True, exist_ok=True)
        _remove_leftovers(root)
        write_folder(temporary, step, state, write_policy=write_policy)
        folder = root / _name(step)
        if folder.exists():  # an older attempt at the same step, most likely a damaged one
            _discard(folder)
        os.replace(temporary, folder)
        _fsync(root)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise _explained(error, root) from error
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise
    for old in _folders(root)[keep:]:
        _discard(old)
    return folder


def write_folder(folder: Path, step: int, state: dict[str, Tree], *, write_policy: Callable[[Path], None]) -> None:
    """Write policy, state and manifest into the new folder ``folder`` and flush them; not atomic by itself."""
    folder.mkdir()
    write_policy(folder)
    tensor_bytes, json_bytes = encode_tree(state)
    _write_bytes(folder / STATE_TENSORS, tensor_bytes)
    _write_bytes(folder / STATE_JSON, json_bytes)
    files = {path.name: _fingerprint(path) for path in sorted(folder.iterdir()) if path.is_file()}
    manifest = {"schema": SCHEMA, "step": step, "files": files}
    _write_bytes(folder / MANIFEST, json.dumps(manifest, indent=1).encode())
    for path in folder.iterdir():
        _fsync(path)
    _fsync(folder)


def verify_checkpoint(folder: Path) -> int:
    """Check every file against the manifest and return the step. Raises CheckpointError naming the first bad file."""
    advice = "resume from an earlier checkpoint of the run"
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_bytes())
        schema, step, files = int(manifest["schema"]), int(manifest["step"]), dict(manifest["files"])
    except FileNotFoundError as error:
        raise CheckpointError(f"{folder} has no {MANIFEST}: not a finished checkpoint; {advice}") from error
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise CheckpointError(f"{folder / MANIFEST} is damaged ({error}); {advice}") from error
    if schema != SCHEMA:
        raise CheckpointError(
            f"{folder} has checkpoint schema {schema}, expected {SCHEMA}; use the robopo that wrote it"
        )
    for name, expected in files.items():
        path = folder / name
        size = path.stat().st_size if path.is_file() else -1
        if size != expected["bytes"]:
            found = f"{size} bytes" if size >= 0 else "missing"
            raise CheckpointError(f"{path} is {found}, the manifest says {expected['bytes']} bytes; {advice}")
        if _fingerprint(path)["sha256"] != expected["sha256"]:
            raise CheckpointError(f"{path} does not match its SHA-256 in the manifest; {advice}")
    return step


def latest_checkpoint(run_dir: Path) -> Path | None:
    """Return the newest checkpoint that verifies, warning about each damaged one on the way, or None."""
    for folder in _folders(run_dir / "checkpoints"):
        try:
            verify_checkpoint(folder)
        except CheckpointError as error:
            log.warning("skipping a damaged checkpoint: %s", error)
            continue
        return folder
    return None


def find_checkpoint(path: Path) -> Path:
    """Return the verified checkpoint folder that ``path`` means: a checkpoint itself, or a run's newest good one."""
    if (path / "checkpoints").is_dir():
        folder = latest_checkpoint(path)
        if folder is None:
            raise CheckpointError(f"{path} has no usable checkpoint; train it, or name another run")
        return folder
    if not path.is_dir():
        raise CheckpointError(f"checkpoint {path} does not exist; give a run folder or a step_… folder inside one")
    verify_checkpoint(path)
    return path


def load_checkpoint(folder: Path) -> Checkpoint:
    """Verify ``folder`` and read its training state. Raises CheckpointError when it is damaged."""
    step = verify_checkpoint(folder)
    try:
        state = decode_tree((folder / STATE_TENSORS).read_bytes(), (folder / STATE_JSON).read_bytes())
    except OSError as error:
        raise CheckpointError(
            f"{folder} holds no readable training state ({error}); it can be evaluated only"
        ) from error
    return Checkpoint(folder, step, state)


def set_aside_after(run_dir: Path, step: int) -> None:
    """Rename checkpoints beyond ``step`` to ``superseded_…``: a run that goes on from ``step`` writes its own."""
    root = run_dir / "checkpoints"
    for folder in _folders(root):
        if _step(folder) > step:
            target = root / f"superseded_{folder.name}"
            shutil.rmtree(target, ignore_errors=True)
            os.replace(folder, target)
            log.warning("%s is newer than the resumed step %d; kept as %s", folder.name, step, target.name)


def _name(step: int) -> str:
    return f"{_PREFIX}{step:08d}"


def _step(folder: Path) -> int:
    return int(folder.name.removeprefix(_PREFIX))


def _folders(root: Path) -> list[Path]:
    """Step folders, newest first."""
    found = [path for path in root.glob(f"{_PREFIX}*") if path.name.removeprefix(_PREFIX).isdigit()]
    return sorted(found, key=_step, reverse=True)


def _discard(folder: Path) -> None:
    """Delete under a temporary name, so that a crash can't leave half a folder under a real one."""
    doomed = folder.with_name(f"{_TEMPORARY}old_{folder.name}")
    shutil.rmtree(doomed, ignore_errors=True)
    os.replace(folder, doomed)
    shutil.rmtree(doomed, ignore_errors=True)


def _remove_leftovers(root: Path) -> None:
    for path in root.glob(f"{_TEMPORARY}*"):
        shutil.rmtree(path, ignore_errors=True)


def _write_bytes(path: Path, data: bytes) -> None:
    path.write_bytes(data)


def _fsync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"bytes": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _explained(error: OSError | SafetensorError, root: Path) -> CheckpointError:
    newest = next(iter(_folders(root)), None)
    kept = f"the last checkpoint {newest} is intact" if newest else "no earlier checkpoint exists"
    # safetensors reports the operating system's error as text only
    full = getattr(error, "errno", None) in (errno.ENOSPC, errno.EDQUOT) or "No space left" in str(error)
    if full:
        free_mb = shutil.disk_usage(root if root.exists() else root.parent).free / 2**20
        return CheckpointError(
            f"disk full while saving to {root} ({free_mb:.0f} MB free); {kept}. Free some space and resume the run"
        )
    return CheckpointError(f"can't save to {root}: {error}; {kept}. Check the folder's permissions and resume the run")
