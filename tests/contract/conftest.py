"""A pair of workers' transports, once for each transport."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from tests.transport_pairs import DEADLINE_S, Pair, close_pair, start_pair


@pytest.fixture(params=["memory", "grpc", "ucx"])
def name(request: pytest.FixtureRequest) -> str:
    """Name the transport under test."""
    value: str = request.param
    return value


@pytest.fixture
async def pair(name: str) -> AsyncIterator[Pair]:
    """Start two workers' transports; every test must end within a deadline."""
    pair = await start_pair(name)
    try:
        yield pair
    finally:
        async with asyncio.timeout(DEADLINE_S):
            await close_pair(pair)
