"""Sizes and durations as people write and read them: 10GiB, 2h. Pure."""

from __future__ import annotations

import re

from chunkmesh.errors import ConfigError

_UNITS_BYTES = {"": 1, "b": 1}
_UNITS_BYTES |= {f"{letter}b": 1000**power for power, letter in enumerate("kmgt", 1)}
_UNITS_BYTES |= {f"{letter}ib": 1024**power for power, letter in enumerate("kmgt", 1)}
_UNITS_S = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_QUANTITY = re.compile(r"(\d+(?:\.\d+)?)\s*([a-zA-Z]*)", re.ASCII)


def parse_size(text: str) -> int:
    """Read bytes: 10GiB, 512MiB, 2GB or a plain number.

    Raises:
        ConfigError: it is no size, or not a whole number of bytes >= 1.
    """
    amount, unit = _split(text)
    if unit.lower() not in _UNITS_BYTES:
        raise ConfigError(f"{text!r} is no size: write 10GiB, 512MiB or a number of bytes")
    size = amount * _UNITS_BYTES[unit.lower()]
    if not 1 <= size < 1 << 63:
        raise ConfigError(f"{text!r} is out of range: 1 byte to 8 EiB are possible")
    return round(size)


def parse_duration_ms(text: str) -> int:
    """Read milliseconds: 30s, 15m, 2h, 7d or 500ms.

    Raises:
        ConfigError: it is no duration, or shorter than a millisecond or longer than ten years.
    """
    amount, unit = _split(text)
    if unit not in _UNITS_S:
        raise ConfigError(f"{text!r} is no duration: write 30s, 15m, 2h or 7d")
    duration_ms = round(amount * _UNITS_S[unit] * 1000)
    if not 1 <= duration_ms <= 3650 * 86_400_000:
        raise ConfigError(f"{text!r} is out of range: 1ms to 3650d are possible")
    return duration_ms


def size_text(num_bytes: int) -> str:
    """Return bytes with the largest binary unit of which there is at least one."""
    power = max(0, min(4, (num_bytes.bit_length() - 1) // 10))
    if power == 0:
        return f"{num_bytes} B"
    return f"{num_bytes / 1024**power:.1f} {' KMGT'[power]}iB"


def duration_text(duration_ms: int) -> str:
    """Return a duration with the largest unit of which there is at least one."""
    for unit in ("d", "h", "m", "s"):
        unit_ms = round(_UNITS_S[unit] * 1000)
        if duration_ms >= unit_ms:
            return f"{duration_ms / unit_ms:.3g}{unit}"
    return f"{duration_ms}ms"


def _split(text: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(text.strip())
    return (float(match[1]), match[2]) if match else (0.0, "?")
