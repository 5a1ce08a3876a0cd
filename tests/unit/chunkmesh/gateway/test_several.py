"""Replies of several calls, one behind the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator

import pytest

from chunkmesh.gateway.several import numbered


class Source:
    """Yields items, then waits or fails; knows whether it was closed."""

    def __init__(self, *items: str, error: Exception | None = None, waits: bool = False) -> None:
        self.is_closed = False
        self._items, self._error, self._waits = items, error, waits

    async def run(self) -> AsyncGenerator[str, None]:
        """Yield the items."""
        try:
            for item in self._items:
                yield item
            if self._waits:
                await asyncio.sleep(60)
            if self._error is not None:
                raise self._error
        finally:
            self.is_closed = True


@pytest.mark.parametrize("num_sources", [1, 3])
async def test_all_items_come_in_each_sources_order(num_sources: int) -> None:
    """With the number of their source."""
    sources = [Source(*(f"{index}{item}" for item in range(9))) for index in range(num_sources)]
    came = [each async for each in numbered([source.run() for source in sources])]
    for index in range(num_sources):
        expected = [f"{index}{item}" for item in range(9)]
        assert expected == [item for number, item in came if number == index]


@pytest.mark.parametrize("num_waiting", [0, 2])
async def test_the_first_that_fails_ends_all(num_waiting: int) -> None:
    """The request has failed; the others would be computed for nobody."""
    failing = Source("a", error=ValueError("x"))
    waiting = [Source(waits=True) for _ in range(num_waiting)]
    with pytest.raises(ValueError, match="x"):
        _ = [each async for each in numbered([each.run() for each in (failing, *waiting)])]
    assert all(source.is_closed for source in waiting)


@pytest.mark.parametrize("num_sources", [1, 3])
async def test_closing_closes_all(num_sources: int) -> None:
    """A client that leaves ends its calls."""
    sources = [Source("a", waits=True) for _ in range(num_sources)]
    async with contextlib.aclosing(numbered([source.run() for source in sources])) as items:
        await anext(items)
    assert all(source.is_closed for source in sources)


async def test_what_nobody_takes_waits_in_its_source() -> None:
    """Memory stays bounded however fast the mesh is."""
    taken = 0

    async def endless() -> AsyncGenerator[int, None]:
        nonlocal taken
        while True:
            taken += 1
            yield taken

    async with contextlib.aclosing(numbered([endless(), endless()])) as items:
        await anext(items)
        await asyncio.sleep(0.01)
        assert taken <= 10
