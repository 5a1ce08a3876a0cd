"""Calls to the cache: their faults are misses, their bugs are not lost."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence

import pytest

from scheduler import events
from scheduler.actions import CheckStored, MatchPrefix, ReleaseLease
from scheduler.cache_calls import CacheCalls
from scheduler.control_loop import ControlLoop
from scheduler.engine_config import EngineConfig
from scheduler.hicache_client import RENEW_S, HiCacheClient
from scheduler.page_keying import PageKeying
from scheduler.prospect import Patience
from scheduler.workers import WorkerLimits

MATCH = MatchPrefix(request_id="a", digests=(bytes(32),))


async def test_without_a_cache_a_match_is_empty_and_comes_later() -> None:
    """The engine must never hear an answer while it still decides."""
    heard: list[events.Event] = []
    calls = CacheCalls(None, heard.append)
    calls.match(MATCH)
    assert heard == []
    await asyncio.sleep(0)
    assert heard == [events.Matched(request_id="a", num_pages=0, lease_id=None, is_known=False)]
    calls.check()
    await calls.close()


class _Client(HiCacheClient):
    """Answers without a server; notes what is renewed."""

    def __init__(self) -> None:
        self.renewed: list[list[str]] = []
        self.ended: list[str] = []

    async def match(self, digests: tuple[bytes, ...]) -> tuple[int | None, str | None]:
        return len(digests), "lease"

    async def num_stored(self, digests: tuple[bytes, ...]) -> int | None:
        return len(digests) - 1

    async def renew(self, lease_ids: Sequence[str]) -> list[str]:
        self.renewed.append(list(lease_ids))
        return self.ended

    async def release_lease(self, _lease_id: str) -> None:
        pass

    async def close(self) -> None:
        pass


async def _settled(calls: CacheCalls) -> None:
    """Wait for the calls under way."""
    while calls._tasks:
        await asyncio.sleep(0)


async def test_a_lease_is_renewed_until_it_is_given_back() -> None:
    """Every third of its time, while a request holds it."""
    client = _Client()
    calls = CacheCalls(client, lambda _event: None)
    calls.match(MATCH)
    await _settled(calls)
    now_s = time.monotonic()
    calls.renew_leases(now_s + RENEW_S / 2)
    assert calls._tasks == set()
    for turn in range(1, 4):
        calls.renew_leases(now_s + turn * RENEW_S + 1)
        await _settled(calls)
    assert client.renewed == [["lease"]] * 3
    calls.release_lease(ReleaseLease(lease_id="lease"))
    calls.renew_leases(now_s + 10 * RENEW_S)
    await calls.close()
    assert len(client.renewed) == 3


async def test_a_lease_that_has_ended_is_not_renewed() -> None:
    """Its pages may be gone; whoever reads them finds that out."""
    client = _Client()
    calls = CacheCalls(client, lambda _event: None)
    calls.match(MATCH)
    await _settled(calls)
    client.ended = ["lease"]
    for turn in range(1, 4):
        calls.renew_leases(time.monotonic() + turn * RENEW_S + 1)
        await _settled(calls)
    assert client.renewed == [["lease"]]
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
        keying=PageKeying(rope=""),
        hicache=None,
        limits=WorkerLimits(silence_s=1.0, patience=Patience(takeover_s=1.0, announced_s=1.0)),
        on_ready=lambda _ready: None,
    )

    def fail(_event: events.Event) -> None:
        raise KeyError("a bug")

    loop._cache = CacheCalls(None, fail)
    loop._cache.match(MATCH)
    with pytest.raises(KeyError, match="a bug"):
        async with asyncio.timeout(5):
            await loop.run()


async def test_what_is_stored_is_told_with_the_last_page() -> None:
    """The engine knows its question by that."""
    heard: list[events.Event] = []
    calls = CacheCalls(_Client(), heard.append)
    calls.check_stored(CheckStored(digests=(bytes(32), b"d" * 32)))
    await _settled(calls)
    assert heard == [events.Checked(last_digest=b"d" * 32, num_pages=1)]
    await calls.close()


async def test_without_hicache_nothing_is_known() -> None:
    """None is no answer; 0 pages would have all stored again."""
    heard: list[events.Event] = []
    calls = CacheCalls(None, heard.append)
    calls.check_stored(CheckStored(digests=(bytes(32),)))
    await _settled(calls)
    assert heard == [events.Checked(last_digest=bytes(32), num_pages=None)]
