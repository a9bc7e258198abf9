"""The commands on the pages are ones that robopo takes: groups, rows, keys and values."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from robopo.cli.configs import load_config
from robopo.cli.schema import COLLECT, DEPLOY, EVAL, TRAIN

ROOT = Path(__file__).parents[3]
FENCE = re.compile(r"^```(?:bash)?\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SCHEMAS = {"train": TRAIN, "collect": COLLECT, "eval": EVAL, "deploy": DEPLOY}


def commands() -> list[str]:
    """Every different command in a fenced block, without its comment; those of your own package are tried elsewhere."""
    found: dict[str, None] = {}
    for page in [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]:
        for block in FENCE.findall(page.read_text(encoding="utf-8")):
            lines = [line.split("  #")[0].strip() for line in block.splitlines()]
            found |= dict.fromkeys(line for line in lines if line.startswith(tuple(f"robopo {c} " for c in SCHEMAS)))
    return [line for line in found if "=mine" not in line]


def test_there_are_some() -> None:
    assert len(commands()) > 20


@pytest.mark.parametrize("command", commands())
def test_a_command_of_the_pages_is_understood(command: str) -> None:
    _, name, *overrides = shlex.split(command)
    overrides = [text for text in overrides if text != "--cfg"]
    load_config(name, overrides, SCHEMAS[name])
