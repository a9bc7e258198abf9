from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
PACKAGES = ("robopo", "sims", "hardware")
MAX_FILE, MAX_ALGORITHM, MAX_FUNCTION, MAX_LINE = 400, 350, 60, 120


def sources(*folders: str) -> list[Path]:
    return [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]


def test_no_source_file_exceeds_400_lines() -> None:
    paths = sources(*PACKAGES, "benchmarks", "tests")
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in paths}
    assert len(lengths) > 20
    assert {name: length for name, length in lengths.items() if length > MAX_FILE} == {}


def test_no_algorithm_exceeds_350_lines() -> None:
    lengths = {path.name: len(path.read_text().splitlines()) for path in sources("robopo/algos", "robopo/losses")}
    assert len(lengths) > 30
    assert {name: length for name, length in lengths.items() if length > MAX_ALGORITHM} == {}


def test_algorithms_do_not_inherit_from_each_other() -> None:
    found: list[str] = []
    for path in sources("robopo/algos"):
        tree = ast.parse(path.read_text())
        imported = {
            alias.asname or alias.name
            for node in ast.walk(tree)
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("robopo.algos")
            for alias in node.names
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef):
                bases = {ast.unparse(base) for base in node.bases}
                # Protocols extend protocols; classes with code don't extend classes with code.
                found += [f"{path.name}: {node.name}" for base in bases & imported if "Protocol" not in bases]
    assert found == []


def test_no_function_exceeds_60_lines() -> None:
    long: dict[str, int] = {}
    for path in sources(*PACKAGES, "benchmarks"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > MAX_FUNCTION:
                    long[f"{path.relative_to(ROOT)}:{node.lineno} {node.name}"] = length
    assert long == {}


def test_no_assert_in_source() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in sources(*PACKAGES)
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert found == []


def test_import_rules() -> None:
    done = subprocess.run(
        [str(Path(sys.executable).with_name("lint-imports")), "--no-logo", "--no-cache"],
        cwd=ROOT, capture_output=True, text=True, check=False, timeout=100,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-3000:]


def test_importing_does_no_work() -> None:
    """No threads, no files, no heavy optional packages from importing the three packages or the CLI."""
    program = """
import sys, threading
import robopo, robopo.errors, robopo.cli.main, sims, sims.base, hardware
heavy = {"torch", "mujoco", "lerobot", "hydra", "wandb", "tensorboard", "matplotlib"} & set(sys.modules)
print(sorted(heavy), threading.active_count())
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.split("\n")[0] == "[] 1"


def test_hardware_needs_numpy_and_the_standard_library_only() -> None:
    names = [
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        for path in sources("hardware")
        if "drivers" not in path.parts
    ]
    program = f"""
import importlib, sys
for name in {names!r}:
    importlib.import_module(name)
third = {{"torch", "mujoco", "robopo", "sims", "lerobot", "gymnasium", "rich", "hydra"}} & set(sys.modules)
print(sorted(third))
"""
    env = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == "[]"
