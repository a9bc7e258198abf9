"""Errors that say what was found, what was expected and what to do next."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class RobopoError(Exception):
    """Base of every error that robopo raises on purpose; the CLI prints its text without a traceback."""


class ConfigError(RobopoError, ValueError):
    """A configuration value is out of range or contradicts another one."""


class ShapeError(RobopoError, ValueError):
    """An array's shape or dtype is not the one the receiver declared."""


class DataError(RobopoError, ValueError):
    """A dataset is empty, incomplete or holds values that can't be trained on."""


class CheckpointError(RobopoError, RuntimeError):
    """A checkpoint folder is missing, truncated, or belongs to something else."""


class NonFiniteError(RobopoError, FloatingPointError):
    """A NaN or infinity reached the optimiser; the message names the tensor and the dump folder."""


class MissingExtraError(RobopoError, ImportError):
    """An optional package is needed; the message names the extra that installs it."""


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Text for an unknown ``name``: ``"; did you mean 'x'? known: a, b, x"``, the hint only when one is close."""
    options = sorted(known)
    close = difflib.get_close_matches(name, options, n=1, cutoff=0.5)
    hint = f"; did you mean {close[0]!r}?" if close else ";"
    return f"{hint} known: {', '.join(options)}"
