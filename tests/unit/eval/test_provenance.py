"""Provenance names the commit in a clone and stays silent outside of one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from robopo.eval.provenance import collect_provenance


def git(folder: Path, *arguments: str) -> str:
    identity = ["-c", "user.name=t", "-c", "user.email=t@example.com", "-c", "commit.gpgsign=false"]
    done = subprocess.run(["git", *identity, "-C", str(folder), *arguments], capture_output=True, text=True, check=True)
    return done.stdout.strip()


def test_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["/somewhere/bin/robopo", "train", "name=a b"])
    git(tmp_path, "init", "-q")
    (tmp_path / "file").write_text("1")
    git(tmp_path, "add", "file")
    git(tmp_path, "commit", "-q", "-m", "first")
    clean = collect_provenance(seed=3, source=tmp_path)
    assert (clean.git_revision, clean.git_dirty, clean.seed) == (git(tmp_path, "rev-parse", "HEAD"), False, 3)
    assert clean.command == "robopo train 'name=a b'"
    assert clean.cpu_cores >= 1
    assert "torch" in clean.versions
    (tmp_path / "file").write_text("2")
    assert collect_provenance(source=tmp_path).git_dirty
    json.dumps(clean.to_json())


def test_no_clone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    found = collect_provenance(source=tmp_path)
    assert (found.git_revision, found.git_dirty) == ("", False)
    monkeypatch.setenv("PATH", "")
    assert collect_provenance(source=tmp_path).git_revision == ""
