"""Calls to the cache: their faults are misses, their bugs are not lost."""

from __future__ import annotations

import asyncio

import pytest

from scheduler import events
from scheduler.actions import MatchPrefix
from scheduler.cache_calls import CacheCalls
from scheduler.control_loop import ControlLoop
from scheduler.engine_config import EngineConfig

MATCH = MatchPrefix(request_id="a", digests=(bytes(32),))


async def test_without_a_cache_a_match_is_empty_and_comes_later() -> None:
    """The engine must never hear an answer while it still decides."""
    heard: list[events.Event] = []
    calls = CacheCalls(None, heard.append)
    calls.match(MATCH)
    assert heard == []
    await asyncio.sleep(0)
    assert heard == [events.Matched(request_id="a", num_pages=0, lease_id=None)]
    calls.check()
    await calls.close()


async def test_a_bug_behind_an_answer_ends_the_control_loop() -> None:
    """A task that failed in silence would leave its request waiting for ever."""
    loop = ControlLoop(
        engine_config=EngineConfig(
            page_tokens=16,
            chunked_prefill_tokens=64,
            max_running_requests=1,
            max_queued_requests=1,
            load_timeout_s=1.0,
            max_outstanding_stores=0,
        ),
        model_layers=1,
        rope="",
        hicache=None,
        worker_timeout_s=1.0,
        on_ready=lambda _ready: None,
    )

    def fail(_event: events.Event) -> None:
        raise KeyError("a bug")

    loop._cache = CacheCalls(None, fail)
    loop._cache.match(MATCH)
    with pytest.raises(KeyError, match="a bug"):
        async with asyncio.timeout(5):
            await loop.run()
