"""Names in configuration files become enum members."""

from __future__ import annotations

from enum import StrEnum

from robopo.errors import ConfigError, did_you_mean


def named_choice[E: StrEnum](kind: type[E], field: str, value: str) -> E:
    """Map a value such as ``"exact"`` to its member; ConfigError with the known names when there is none."""
    try:
        return kind(value)
    except ValueError as error:
        raise ConfigError(f"{field}={value!r} is unknown{did_you_mean(value, [str(m) for m in kind])}") from error
