from __future__ import annotations

import errno
import importlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from robopo.cli.main import COMMANDS, main

ROOT = Path(__file__).parents[3]


def test_overview_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert main(["--help"]) == 0
    main(["-h"])
    text = capsys.readouterr().out
    assert all(f"\n  {name}" in text for name in COMMANDS)


@pytest.mark.parametrize("name", list(COMMANDS))
def test_help_has_examples_that_begin_with_the_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert 3 <= sum(line.startswith(f"  robopo {name}") for line in lines) <= 5


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (["trian"], "unknown command 'trian'; did you mean 'train'?"),
        (["train", "algo=dpo"], "algo=dpo: unknown algo; did you mean 'dppo'? known: adpo, bc"),
        (["train", "sim=lfit"], "did you mean 'lift'?"),
        (["train", "algo.gama=0.9"], "unknown setting 'algo.gama'; did you mean 'algo.advantage.gamma'?"),
        (["train", "gamma=0.9"], "did you mean 'algo.advantage.gamma'?"),
        (["train", "algo.epoch=3"], "unknown setting 'algo.epoch'; did you mean 'algo.epochs'?"),
        (["train", "algo.trust_region.coeff=0.02"], "did you mean 'algo.trust_region.coef'?"),
        (["train", "algo.trust_region.coef=2"], "coef=2: expected a number in (0, 1)"),
        (["train", "sed=3"], "did you mean 'seed'?"),
        (["train", "algo.advantage.gamma=1.5"], "gamma=1.5: expected a number in [0, 1]"),
        (["train", "algo.epochs=many"], "could not be converted to Integer"),
        (["train", "policy.process.kind=ddi"], "did you mean 'ddim'?"),
        (["train", "seed"], "expected key=value"),
        (["train"], "give checkpoint="),
        (["train", "algo=bc"], "give demos="),
        (["train", "algo=bc", "loop.iterations=3"], "set algo.steps"),
        (["train", "seed=1000000001"], "reserved for evaluation"),
        (["train", "checkpoint=nowhere"], "nowhere does not exist"),
        (["train", "resume=nowhere"], "nowhere does not exist"),
        (["collect", "imperfection=2"], "imperfection=2.0"),
        (["eval"], "needs checkpoint="),
        (["deploy"], "needs checkpoint="),
        (["deploy", "arm=smi"], "did you mean 'sim'?"),
        (["doctor", "--jsn"], "did you mean '--json'?"),
        (["doctor", "--replay"], "needs the folder"),
    ],
)
def test_mistakes_are_explained_without_a_traceback(
    argv: list[str], expected: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(argv) == 2
    assert expected in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "error", "expected", "absent"),
    [
        ("train", OSError(errno.ENOSPC, "No space left", "run.json"), "No space left (run.json): free some", "path"),
        ("train", OSError(errno.EACCES, "Permission denied", "x"), "resume=<run folder>", "free some"),
        ("collect", OSError(errno.ENOSPC, "No space left", "x.parquet"), "(x.parquet): free some space", "resume="),
        ("eval", PermissionError(errno.EACCES, "Permission denied", "out"), "check the path", "resume="),
        ("deploy", ConnectionError(), "error: ConnectionError\n", "path"),
    ],
)
def test_errors_of_the_system_take_one_line(
    name: str,
    error: OSError,
    expected: str,
    absent: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(argv: list[str]) -> int:
        raise error

    monkeypatch.setattr(importlib.import_module(COMMANDS[name].module), "main", fail)
    assert main([name]) == 2
    text = capsys.readouterr().err
    assert expected in text
    assert absent not in text
    assert text.count("\n") == 1


@pytest.mark.parametrize("name", ["collect", "train", "eval", "deploy"])
def test_cfg_prints_every_setting(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--cfg"]) == 0
    assert "seed" in capsys.readouterr().out


def test_help_imports_nothing_heavy() -> None:
    program = "import sys, robopo.cli.main as m; m.main(['train', '--help']); sys.exit('torch' in sys.modules)"
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, "-c", program], env=env, capture_output=True, check=True, timeout=60)
