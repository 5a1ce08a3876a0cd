"""The replies of several calls as they come, one behind the other."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncGenerator, Sequence
from typing import Generic, TypeVar

_T = TypeVar("_T")
_MAX_WAITING = 4
"""Replies that nobody has taken yet; more wait in their calls."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _End:
    """One source has no more."""

    error: Exception | None = None


async def numbered(
    sources: Sequence[AsyncGenerator[_T, None]],
) -> AsyncGenerator[tuple[int, _T], None]:
    """Yield (source, item) until all sources have ended; the first that fails ends all."""
    if len(sources) == 1:
        async with contextlib.aclosing(sources[0]) as only:
            async for item in only:
                yield 0, item
        return
    merged = _Merged[_T]()
    tasks = [
        asyncio.create_task(merged.forward(index, source)) for index, source in enumerate(sources)
    ]
    num_left = len(tasks)
    try:
        while num_left:
            came = await merged.items.get()
            if not isinstance(came, _End):
                yield came
            elif came.error is None:
                num_left -= 1
            else:
                raise came.error
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


class _Merged(Generic[_T]):
    """Where the items of several sources wait."""

    def __init__(self) -> None:
        self.items: asyncio.Queue[tuple[int, _T] | _End] = asyncio.Queue(_MAX_WAITING)

    async def forward(self, index: int, source: AsyncGenerator[_T, None]) -> None:
        """Take a source to its end."""
        error: Exception | None = None
        try:
            async with contextlib.aclosing(source):
                async for item in source:
                    await self.items.put((index, item))
        except Exception as raised:  # noqa: BLE001 - raised where the items are taken
            error = raised
        await self.items.put(_End(error=error))
