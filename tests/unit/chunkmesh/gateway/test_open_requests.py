"""How many requests are open, and how they end."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from chunkmesh.gateway.api_error import ApiError
from chunkmesh.gateway.open_requests import OpenRequests


def new(max_requests: int = 2, max_body_bytes: int = 100) -> OpenRequests:
    """Return an owner of none."""
    return OpenRequests(max_requests=max_requests, max_body_bytes=max_body_bytes)


async def test_more_than_the_limit_are_refused() -> None:
    """In words, and with a time to try again; the next one may come when one has ended."""
    requests = new(max_requests=1)
    with requests.one():
        with pytest.raises(ApiError, match="limit 1") as refused, requests.one():
            pass
        assert (429, 1.0) == (refused.value.status, refused.value.retry_after_s)
    with requests.one():
        assert 1 == len(requests)


async def test_each_prompt_counts() -> None:
    """One request of HTTP may have a hundred."""
    requests = new(max_requests=3)
    with requests.one(), requests.prompts(2), pytest.raises(ApiError), requests.prompts(1):
        pass
    assert 0 == len(requests)


async def test_bodies_are_bounded_together() -> None:
    """Long prompts would fill the memory long before there are too many."""
    requests = new()
    with contextlib.ExitStack() as held:
        for _ in range(8):
            held.enter_context(requests.holding(100))
        with pytest.raises(ApiError, match="limit 800"), requests.holding(1):
            pass
    with requests.holding(100):
        pass


async def test_draining_waits_for_those_that_are_open() -> None:
    """And refuses others meanwhile."""
    requests = new()
    may_end = asyncio.Event()

    async def work() -> str:
        with requests.one():
            await may_end.wait()
        return "done"

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    draining = asyncio.create_task(requests.drain(10))
    await asyncio.sleep(0)
    with pytest.raises(ApiError, match="shutting down") as refused, requests.one():
        pass
    assert 503 == refused.value.status
    may_end.set()
    assert ("done", 0) == (await working, await draining)


async def test_draining_ends_what_takes_too_long() -> None:
    """Its task is cancelled, and knows why."""
    requests = new()

    async def work() -> bool:
        with requests.one():
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                return requests.is_over
        return False

    working = asyncio.create_task(work())
    await asyncio.sleep(0)
    assert 1 == await requests.drain(0.01)
    assert await working
