"""Walks that let others in between."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from itertools import pairwise

from hicache.slices import SLICE_PAGES, in_slices

NUM_PAGES = 1_000_000


async def test_no_slice_is_longer_than_the_bound() -> None:
    """Other calls wait for one slice at most, however many pages there are."""
    taken = 0
    seen_by_others: list[int] = []

    async def others() -> None:
        while True:
            seen_by_others.append(taken)
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    async for _ in in_slices(range(NUM_PAGES)):
        taken += 1
    waiting.cancel()
    assert NUM_PAGES == taken
    assert len(seen_by_others) >= NUM_PAGES // SLICE_PAGES
    assert max(b - a for a, b in pairwise(seen_by_others)) <= SLICE_PAGES


async def test_an_item_counts_for_its_pages() -> None:
    """A run of many pages takes as long as many runs of one."""
    turns = 0

    async def others() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    async for _ in in_slices(range(8), lambda _: SLICE_PAGES // 2):
        pass
    waiting.cancel()
    assert 4 == turns


async def test_items_are_made_as_they_are_taken() -> None:
    """Collecting them first would be the long walk itself."""
    made = 0

    def items() -> Iterator[int]:
        nonlocal made
        for index in range(3):
            made += 1
            yield index

    async for index in in_slices(items()):
        assert index + 1 == made
