"""Tests that need the extra ``envs``; where it isn't installed there is nothing to collect (make test-envs)."""

from __future__ import annotations

from importlib.util import find_spec

NEEDS = ("gymnasium_robotics", "gym_pusht", "ogbench")
collect_ignore_glob = [] if all(find_spec(name) is not None for name in NEEDS) else ["test_*.py"]
