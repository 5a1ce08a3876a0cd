"""Runs a check on many hostile values: few in tests, as many as time allows in `make fuzz`."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

SECONDS = float(os.environ.get("FUZZ_SECONDS_EACH", "0"))
"""How long each check goes on; 0 means a fixed number of values, the same at every run."""
_MAX_SHOWN = 2000
_Value = TypeVar("_Value")


def explore(
    draw: Callable[[random.Random], _Value], check: Callable[[_Value], object], *, examples: int
) -> None:
    """Check drawn values; the first on which a check fails is shown with its seed."""
    begun_s = time.monotonic()
    first = random.SystemRandom().randrange(1 << 48) if SECONDS else 0
    seed = first
    while seed - first < examples or time.monotonic() - begun_s < SECONDS:
        value = draw(random.Random(seed))  # noqa: S311 - a seed that finds it again
        try:
            check(value)
        except Exception as error:
            error.add_note(f"seed {seed}: {value!r}"[:_MAX_SHOWN])
            raise
        seed += 1
    if SECONDS:
        rate = (seed - first) / (time.monotonic() - begun_s)
        print(f"{seed - first} executions, {rate:.0f}/s")


async def explore_async(
    draw: Callable[[random.Random], _Value],
    check: Callable[[_Value], Awaitable[object]],
    *,
    examples: int,
) -> None:
    """Do what explore does, with a check that awaits."""
    begun_s = time.monotonic()
    first = random.SystemRandom().randrange(1 << 48) if SECONDS else 0
    seed = first
    while seed - first < examples or time.monotonic() - begun_s < SECONDS:
        value = draw(random.Random(seed))  # noqa: S311 - a seed that finds it again
        try:
            await check(value)
        except Exception as error:
            error.add_note(f"seed {seed}: {value!r}"[:_MAX_SHOWN])
            raise
        seed += 1
    if SECONDS:
        rate = (seed - first) / (time.monotonic() - begun_s)
        print(f"{seed - first} executions, {rate:.0f}/s")
