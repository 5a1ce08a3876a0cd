"""How long the event loop was held up, for tests of what must not block it."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator

_STEP_S = 0.002


@dataclasses.dataclass(slots=True)
class LoopLag:
    """Filled while it is measured."""

    worst_s: float = 0.0
    """Longest time by which a timer was late."""


@contextlib.asynccontextmanager
async def loop_lag() -> AsyncIterator[LoopLag]:
    """Measure the running loop while inside."""
    lag = LoopLag()

    async def watch() -> None:
        while True:
            before_s = time.monotonic()
            await asyncio.sleep(_STEP_S)
            lag.worst_s = max(lag.worst_s, time.monotonic() - before_s - _STEP_S)

    watching = asyncio.create_task(watch())
    yield lag
    watching.cancel()
