"""Where a result comes from: code, versions, machine, seed and command."""

from __future__ import annotations

import platform
import shlex
import subprocess
import sys
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from sims.cores import usable_cores

PACKAGES = ("robopo", "torch", "numpy", "mujoco", "lerobot")


@dataclass(frozen=True, slots=True)
class Provenance:
    """Facts to keep beside every result. Host and user names are left out on purpose."""

    git_revision: str
    """Commit of the source folder, or empty where robopo wasn't run from a clone."""
    git_dirty: bool
    """Tracked files differ from that commit."""
    versions: dict[str, str]
    """Package versions; missing packages are absent."""
    python: str
    """Python version."""
    system: str
    """Operating system and processor architecture."""
    cpu: str
    """Processor model."""
    cpu_cores: int
    """Cores this process may use."""
    gpu: str
    """First CUDA device, or empty."""
    seed: int | None
    """Root seed of the run."""
    command: str
    """Command line, quoted for a shell."""

    def to_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def collect_provenance(*, seed: int | None = None, source: Path | None = None) -> Provenance:
    """Look at this process and machine. source: folder inside the clone (default: where robopo's code lies)."""
    folder = Path(__file__).resolve().parent if source is None else source
    revision = _git(folder, "rev-parse", "HEAD")
    return Provenance(
        git_revision=revision,
        git_dirty=bool(revision) and bool(_git(folder, "status", "--porcelain", "--untracked-files=no")),
        versions=_versions(),
        python=platform.python_version(),
        system=f"{platform.system()} {platform.machine()}",
        cpu=_cpu_model(),
        cpu_cores=usable_cores(),
        gpu=_gpu(),
        seed=seed,
        command=shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
    )


def _git(folder: Path, *arguments: str) -> str:
    """Standard output of git, or an empty string where there is no git or no clone."""
    try:
        done = subprocess.run(  # noqa: S603 - fixed arguments
            ["git", "-C", str(folder), *arguments],  # noqa: S607 - the user's own git
            capture_output=True,
            text=True,
            timeout=10,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def _versions() -> dict[str, str]:
    found: dict[str, str] = {}
    for name in PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def _cpu_model() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    models = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return models[0] if models else platform.processor() or "unknown"


def _gpu() -> str:
    import torch

    return torch.cuda.get_device_name(0) if torch.cuda.is_available() else ""
