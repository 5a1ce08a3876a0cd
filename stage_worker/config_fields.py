"""Reads single fields of a config.json and names those that are wrong. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from chunkmesh.errors import ConfigError

Fields = Mapping[str, Any]
_MOST = 2**24
_SMALLEST, _LARGEST = 1e-30, 1e30
"""No field of any model is near them; these keep later arithmetic within what numbers can hold."""


def count(
    raw: Fields, field: str, *, default: int | None = None, least: int = 1, most: int = _MOST
) -> int:
    """Return a whole number from least to most; an absent or null field has the default.

    Raises:
        ConfigError: there is none, or something else.
    """
    value = raw.get(field)
    if value is None:
        value = default
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise ConfigError(f"config.json: {field}={value!r} must be a whole number >= {least}")
    if value > most:
        raise ConfigError(f"config.json: {field}={value!r} must be at most {most}")
    return value


def number(raw: Fields, field: str, *, default: float | None = None) -> float:
    """Return a number from 0 to 1e30; an absent or null field has the default.

    Raises:
        ConfigError: there is none, or something else.
    """
    value = raw.get(field)
    if value is None:
        value = default
    # NaN is not between any two numbers.
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is None or not is_number or not 0 <= value <= _LARGEST:
        raise ConfigError(f"config.json: {field}={value!r} must be a number >= 0, <= {_LARGEST}")
    return float(value)


def positive(raw: Fields, field: str, *, default: float | None = None) -> float:
    """Return a number from 1e-30 to 1e30; an absent or null field has the default.

    Raises:
        ConfigError: there is none, or something else.
    """
    value = number(raw, field, default=default)
    if value < _SMALLEST:
        raise ConfigError(f"config.json: {field}={value!r} must be above 0, >= {_SMALLEST}")
    return value


def flag(raw: Fields, field: str, *, default: bool = False) -> bool:
    """Return true or false; an absent or null field has the default.

    Raises:
        ConfigError: something else stands there.
    """
    value = raw.get(field)
    if value is None:
        return default
    if not isinstance(value, bool):
        raise ConfigError(f"config.json: {field}={value!r} must be true or false")
    return value


def items(raw: Fields, field: str, kind: type) -> tuple[Any, ...] | None:
    """Return a list whose items are all of a kind, bool being none of int; None if absent or null.

    Raises:
        ConfigError: something else stands there.
    """
    value = raw.get(field)
    if value is None:
        return None
    if not isinstance(value, list) or not all(type(item) is kind for item in value):
        raise ConfigError(f"config.json: {field}={value!r} must be a list of {kind.__name__}")
    return tuple(value)


def choice(raw: Fields, field: str, known: tuple[str, ...], *, default: str = "") -> str:
    """Return one of the known words; an absent or null field has the default.

    Raises:
        ConfigError: another word stands there.
    """
    value = raw.get(field)
    if value is None:
        value = default
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{field}={value!r} is not known; known are {', '.join(known)}")
    return value
