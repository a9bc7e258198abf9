"""These tests need isaaclab, which lives in an environment of its own: make test-isaaclab."""

from __future__ import annotations

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("isaaclab") else ["*"]
