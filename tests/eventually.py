"""Waits for what has no event, in tests: looks again and again, and gives up after so many looks.

The bound is a number of looks, and not a time by the clock: on a machine that others use each look
takes longer, and so does what is waited for. No wait is shorter than it says.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Awaitable, Callable

LOOK_S = 0.01
"""Between two looks."""
WAIT_S = 20.0


async def eventually(
    check: Callable[[], bool | Awaitable[bool]], *, within_s: float = WAIT_S
) -> None:
    """Look until the check, which may be a coroutine function, holds.

    Raises:
        TimeoutError: it never does; looks that take no time themselves take within_s together.
    """
    for _ in range(math.ceil(within_s / LOOK_S)):
        held = check()
        if held if isinstance(held, bool) else await held:
            return
        await asyncio.sleep(LOOK_S)
    raise TimeoutError(f"not within {within_s:g} s")


def eventually_blocking(
    check: Callable[[], bool], *, within_s: float = WAIT_S, why: Callable[[], str] = str
) -> None:
    """Look until the check holds, where no event loop runs; why is told if it never does.

    Raises as eventually does.
    """
    for _ in range(math.ceil(within_s / LOOK_S)):
        if check():
            return
        time.sleep(LOOK_S)
    raise TimeoutError(f"not within {within_s:g} s {why()}".rstrip())
