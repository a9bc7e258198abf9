from __future__ import annotations

import json

import pytest

from robopo.cli import doctor
from robopo.cli.doctor import Check, Status, check_disk, check_extras, check_python, check_versions, in_range


@pytest.mark.parametrize(
    ("found", "wanted", "good"),
    [
        ("2.11.0", "<2.12,>=2.11", True),
        ("2.11.0+cu130", "<2.12,>=2.11", True),
        ("2.12.0", "<2.12,>=2.11", False),
        ("3.9.0", "<=3.9", True),
        ("3.10", ">=3.9", True),
        ("1.5.2", "==1.5.2", True),
        ("1.5.3", "==1.5.2", False),
        ("1.0", "", True),
    ],
)
def test_versions_compare_as_numbers(found: str, wanted: str, good: bool) -> None:
    assert in_range(found, wanted) is good


def test_python_and_disk() -> None:
    assert check_python((3, 12)).status is Status.OK
    assert "pyenv install 3.12" in check_python((3, 11)).advice
    assert [check_disk(size).status for size in (2**20, 2**30, 2**40)] == [Status.FAIL, Status.NOTE, Status.OK]


def test_core_versions_hold_here() -> None:
    assert {check.status for check in check_versions()} == {Status.OK}


def test_every_extra_is_listed() -> None:
    names = {check.name for check in check_extras()}
    assert {"extra wandb", "extra onnx", "extra robosuite"} <= names


def test_exit_code_and_json(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    checks = [Check("a", Status.OK, "1"), Check("b", Status.FAIL, "none", "install [b]")]
    monkeypatch.setattr(doctor, "run_checks", lambda: checks)
    assert doctor.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out)[1]["advice"] == "install [b]"
    assert doctor.main([]) == 1
    out = capsys.readouterr().out
    assert "install [b]" in out
    assert "not ready: b" in out
    monkeypatch.setattr(doctor, "run_checks", lambda: checks[:1])
    assert doctor.main([]) == 0


def test_broken_backend_names_the_debian_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "_render_problem", lambda backend: "no library" if backend == "egl" else "")
    egl, osmesa = doctor.check_rendering()[:2]
    assert (egl.status, osmesa.status) == (Status.NOTE, Status.OK)
    assert "libegl1" in egl.advice
    monkeypatch.setattr(doctor, "_render_problem", lambda backend: "no library")
    assert doctor.check_rendering()[2].status is Status.FAIL
