"""Reads numbers of tokens and ranges of numbers as people write them: 128K, 1M, 4K..1M. Pure.

K is 1024 and M is 1024 * 1024, as in the context lengths of models.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from chunkmesh.errors import ConfigError

_NUMBER = re.compile(r"(\d{1,12})([KkMm]?)", re.ASCII)
_UNITS = {"": 1, "k": 1024, "m": 1024 * 1024}


def parse_count(text: str, *, flag: str, most: int) -> int:
    """Read 4096, 128K or 1M.

    Raises:
        ConfigError: it is none of them, below 1 or above most; names the flag and the value.
    """
    match = _NUMBER.fullmatch(text.strip())
    if match is None:
        raise ConfigError(f"{flag}: {text.strip()!r} is no number: write 4096, 128K or 1M")
    value = int(match[1]) * _UNITS[match[2].lower()]
    if not 1 <= value <= most:
        raise ConfigError(f"{flag}: {text.strip()} is {value}, must be from 1 to {most}")
    return value


def parse_counts(text: str, *, flag: str, most: int) -> tuple[int, ...]:
    """Read numbers between commas; each is kept once, in the order given.

    Raises:
        ConfigError: as parse_count.
    """
    return tuple(dict.fromkeys(parse_count(t, flag=flag, most=most) for t in text.split(",")))


def parse_range(text: str, *, flag: str, most: int) -> tuple[int, ...]:
    """Read 1..64: doubled from the first to the last, which is always in; or a single number.

    Raises:
        ConfigError: as parse_count, or the last is below the first.
    """
    first_text, dots, last_text = text.partition("..")
    first = parse_count(first_text, flag=flag, most=most)
    if not dots:
        return (first,)
    last = parse_count(last_text, flag=flag, most=most)
    if last < first:
        raise ConfigError(f"{flag}: {text.strip()} goes down, from {first} to {last}")
    return tuple(_doubled(first, last))


def _doubled(first: int, last: int) -> Iterator[int]:
    """Yield first, twice that, and so on, and last."""
    value = first
    while value < last:
        yield value
        value *= 2
    yield last


def short_count(value: int) -> str:
    """Write 131072 as 128K and 1048576 as 1M; others as they are."""
    for unit, size in (("M", _UNITS["m"]), ("K", _UNITS["k"])):
        if value % size == 0:
            return f"{value // size}{unit}"
    return f"{value}"
