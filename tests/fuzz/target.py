"""A decoder of bytes that come from outside, and what must be true whatever the bytes are."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.fuzz.mutation import Draw


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One decoder."""

    name: str
    seeds: tuple[bytes, ...]
    """Valid bytes; each must be accepted."""
    check: Callable[[bytes], bool]
    """Decodes, and says whether the bytes were accepted. The decoder's own error is a refusal; any
    other ends the test, as does a result that is not what the bytes say."""
    values: Draw
    """Hostile bytes."""
    examples: int = 2000
    """In `make test`."""


def refused(error: Exception) -> bool:
    """Return False for a refusal, which must say why."""
    if not str(error):
        raise AssertionError(f"{type(error).__name__} without a word")
    return False
