"""Reads single fields of a config.json and names those that are wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chunkmesh.errors import ConfigError

Fields = Mapping[str, Any]


def count(raw: Fields, field: str, *, default: int | None = None, least: int = 1) -> int:
    """Return a whole number >= least; an absent or null field has the default.

    Raises:
        ConfigError: there is none, or something else.
    """
    value = raw.get(field)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"config.json: {field}={value!r} must be a whole number >= {least}")
    return value


def positive(raw: Fields, field: str, *, default: float | None = None) -> float:
    """Return a number > 0; an absent or null field has the default.

    Raises:
        ConfigError: there is none, or something else.
    """
    value = raw.get(field)
    if value is None:
        value = default
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not value > 0:
        raise ConfigError(f"config.json: {field}={value!r} must be a number > 0")
    return float(value)


def choice(raw: Fields, field: str, known: tuple[str, ...], *, default: str = "") -> str:
    """Return one of the known words; an absent or null field has the default.

    Raises:
        ConfigError: another word stands there.
    """
    value = raw.get(field)
    if value is None:
        value = default
    if value not in known:
        raise ConfigError(f"{field}={value!r} is not known; known are {', '.join(known)}")
    return str(value)
