"""The wheel installs and runs outside the clone, configurations included."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def uv_command() -> list[str] | None:
    """A uv that runs: the one that set the environment up, this Python's module, or one on PATH."""
    candidates = [os.environ.get("UV", "").split(), [sys.executable, "-m", "uv"], ["python3", "-m", "uv"], ["uv"]]
    for command in filter(None, candidates):
        try:
            subprocess.run([*command, "--version"], capture_output=True, check=True, timeout=30, cwd=ROOT)
        except (OSError, subprocess.SubprocessError):
            continue
        return command
    return None


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel's content, as ``pip install --no-deps --target`` lays it out."""
    uv = uv_command()
    if uv is None:
        pytest.skip("building the wheel needs uv")
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    names = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, names.split("\0")):  # what a fresh clone holds
        if (ROOT / name).is_file():
            (source / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, source / name)
    build = [*uv, "build", "--wheel", "--out-dir", str(folder), str(source)]
    done = subprocess.run(build, capture_output=True, text=True, check=False, timeout=110, cwd=ROOT)
    assert done.returncode == 0, done.stderr[-2000:]
    (wheel,) = folder.glob("robopo-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def run(site: Path, cwd: Path, *arguments: str) -> str:
    env = {**os.environ, "PYTHONPATH": str(site)}
    done = subprocess.run(
        [sys.executable, *arguments], env=env, cwd=cwd, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def test_content(installed: Path) -> None:
    top = {path.name for path in installed.iterdir() if not path.name.endswith(".dist-info")}
    assert top == {"robopo", "sims", "hardware"}
    assert (installed / "robopo" / "configs" / "train.yaml").is_file()
    assert any((installed / "sims" / "assets").rglob("*.xml"))
    (metadata,) = installed.glob("*.dist-info")
    assert "robopo = robopo.cli.main:main" in (metadata / "entry_points.txt").read_text()
    assert any(metadata.rglob("LICENSE"))


def test_help_configs_and_scenes_outside_the_clone(installed: Path, tmp_path: Path) -> None:
    assert "usage: robopo" in run(installed, tmp_path, "-m", "robopo.cli.main", "--help")
    assert "task: push" in run(installed, tmp_path, "-m", "robopo.cli.main", "train", "sim=push", "--cfg")
    program = "import robopo, sims.mujoco_vec as m; print(robopo.__file__, m.load_model('lift').nq)"
    where, nq = run(installed, tmp_path, "-c", program).split()
    assert Path(where).is_relative_to(installed)
    assert int(nq) > 0
