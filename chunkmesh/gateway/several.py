"""The replies of several calls as they come, one behind the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")
_MAX_WAITING = 4
"""Replies that nobody has taken yet; more wait in their calls."""


async def numbered(
    sources: Sequence[AsyncGenerator[_T, None]],
) -> AsyncGenerator[tuple[int, _T], None]:
    """Yield (source, item) until all sources have ended; the first that fails ends all."""
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as only:
            async for item in only:
                yield 0, item
        return
    merged = _Merged(sources)
    try:
        while merged.num_left:
            came = await merged.next()
            if came is not None:
                yield came
    finally:
        await merged.close()


class _Merged(Generic[_T]):
    """Owner of the tasks that take from several sources."""

    def __init__(self, sources: Sequence[AsyncGenerator[_T, None]]) -> None:
        self.num_left = len(sources)
        """Sources that have not ended."""
        self._came: asyncio.Queue[tuple[int, _T] | asyncio.Task[None]] = asyncio.Queue()
        """Items, at most as many as there is room for, and the tasks that have ended."""
        self._room = asyncio.Semaphore(_MAX_WAITING)
        self._tasks = [
            asyncio.create_task(self._forward(index, source))
            for index, source in enumerate(sources)
        ]
        for task in self._tasks:
            task.add_done_callback(self._came.put_nowait)

    async def next(self) -> tuple[int, _T] | None:
        """Return the next item; None if a source has ended instead. Raises what ended one."""
        came = await self._came.get()
        if isinstance(came, asyncio.Task):
            self.num_left -= 1
            came.result()
            return None
        self._room.release()
        return came

    async def close(self) -> None:
        """End all, and wait for that."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _forward(self, index: int, source: AsyncGenerator[_T, None]) -> None:
        """Take a source to its end."""
        async with contextlib.aclosing(source):
            async for item in source:
                await self._room.acquire()
                self._came.put_nowait((index, item))
