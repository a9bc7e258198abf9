"""These tests need robosuite, which lives in an environment of its own: make test-robosuite."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("robosuite") else ["*"]
