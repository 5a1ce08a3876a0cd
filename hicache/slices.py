"""Long walks through the index, cut into slices between which others are served."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Sequence
from typing import TypeVar

SLICE_PAGES = 10_000
"""Pages looked at between two pauses; some 10 ms."""

_T = TypeVar("_T")


def parts(items: Sequence[_T]) -> Iterator[Sequence[_T]]:
    """Cut items into slices, the last items first."""
    for end in range(len(items), 0, -SLICE_PAGES):
        yield items[max(0, end - SLICE_PAGES) : end]


async def found_in_slices(items: Iterable[_T | None]) -> AsyncIterator[_T]:
    """Yield items with pauses as below, but none of those that are None."""
    async for item in in_slices(items):
        if item is not None:
            yield item


async def in_slices(
    items: Iterable[_T], num_pages: Callable[[_T], int] = lambda _item: 1
) -> AsyncIterator[_T]:
    """Yield items, with a pause whenever they have come to SLICE_PAGES pages.

    The index may change during a pause, which items must bear.
    """
    seen_pages = 0
    for item in items:
        yield item
        seen_pages += num_pages(item)
        if seen_pages >= SLICE_PAGES:
            seen_pages = 0
            await asyncio.sleep(0)
