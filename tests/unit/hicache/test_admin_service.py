"""Changes by hand, made some pages at a time while others are served."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from typing import Any

import pytest

from chunkmesh.v1 import hicache_pb2 as pb
from hicache import slices
from hicache.admin_service import AdminService
from hicache.audit_log import Caller, Deed
from hicache.cache import PrefixCache
from hicache.kept_state import KeptState
from hicache.selection import Everything, Idle, Prompt
from tests.cache_samples import FULL, OTHER_NAMESPACE, PAGE_BYTES, restore_pins, store
from tests.page_samples import NAMESPACE, chain

TRUNK = chain(12)
TWIG = chain(7, name="twig")
OTHER = chain(9, name="other")
NUM_PAGES = len(TRUNK) + len(TWIG) + len(OTHER)
ALL = pb.Selection(everything=True)
ME = Caller(peer="ipv4:127.0.0.1:9", name="me")


class _Redis:
    """Answers, and keeps everything; notes what the audit log is told."""

    fault = None

    def __init__(self) -> None:
        self.deeds: list[Deed] = []

    def unlink_soon(self) -> None:
        """Do nothing."""

    async def record(self, deed: Deed) -> None:
        """Note a deed."""
        self.deeds.append(deed)

    @contextlib.asynccontextmanager
    async def changing(self) -> AsyncIterator[None]:
        """Keep all."""
        yield


def new_cache(*, pinned: tuple[bytes, ...] = ()) -> PrefixCache:
    """A trunk with a twig at the fifth page, and another namespace."""
    cache = PrefixCache(name="a", budget_bytes=0)
    store(cache, TRUNK, now_s=0)
    parents = (TRUNK[4], *TWIG[:-1])
    twig = [(digest, parent, 0) for digest, parent in zip(TWIG, parents, strict=True)]
    cache.commit(NAMESPACE, twig, FULL, now_s=0)
    store(cache, OTHER, namespace=OTHER_NAMESPACE, now_s=0)
    cache.pin(Prompt(digests=pinned), until_s=None, now_s=0, dry_run=False)
    return cache


def service_of(cache: PrefixCache, redis: _Redis) -> AdminService:
    """Return a service whose Redis is played."""
    played: Any = redis
    return AdminService(
        cache=cache,
        store=played,
        watcher=played,
        kept=played,
        audit=played,
        on_cleared=lambda _pages, _bytes: None,
    )


@pytest.fixture(params=[1, 4, 1000], ids="{} at a time".format)
def slice_pages(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Cut walks so."""
    num_pages: int = request.param
    monkeypatch.setattr(slices, "SLICE_PAGES", num_pages)
    return num_pages


@pytest.mark.usefixtures("slice_pages")
@pytest.mark.parametrize("pinned", [(), TRUNK[:3], TRUNK[:8]], ids=["free", "low", "high"])
async def test_an_evict_in_parts_is_what_it_is_in_one(pinned: tuple[bytes, ...]) -> None:
    """Children may go in an earlier part than their parents, and held ones keep all above."""
    expected = new_cache(pinned=pinned).evict(Everything(), now_s=0, dry_run=False)
    cache, redis = new_cache(pinned=pinned), _Redis()
    service = service_of(cache, redis)
    dry = await service.evict(pb.EvictRequest(selection=ALL, dry_run=True), ME)
    assert NUM_PAGES == cache.num_pages
    done = await service.evict(pb.EvictRequest(selection=ALL), ME)
    assert dry == done
    assert (expected.num_pages, expected.num_bytes, expected.num_held_pages) == (
        done.num_pages,
        done.num_bytes,
        done.num_held_pages,
    )
    assert NUM_PAGES - expected.num_pages == cache.num_pages
    assert [expected.num_pages] == [deed.num_pages for deed in redis.deeds]
    cache.check_integrity()


@pytest.mark.usefixtures("slice_pages")
async def test_pins_in_parts_are_what_they_are_in_one() -> None:
    """All that is meant, counted once; the end of all pins is also that of those that wait."""
    cache, redis = new_cache(), _Redis()
    lost = chain(1, name="lost")
    restore_pins(cache, [(lost[0], None)])
    service = service_of(cache, redis)
    for dry_run in (True, False):
        pinned = await service.pin(pb.PinRequest(selection=ALL, dry_run=dry_run), ME)
        assert (NUM_PAGES, NUM_PAGES * PAGE_BYTES) == (pinned.num_pages, pinned.num_bytes)
        assert (1 if dry_run else 1 + NUM_PAGES) == len(cache.all_pins.all())
    for dry_run in (True, False):
        ended = await service.unpin(pb.UnpinRequest(selection=ALL, dry_run=dry_run), ME)
        assert NUM_PAGES == ended.num_pages
        assert (1 + NUM_PAGES if dry_run else 0) == len(cache.all_pins.all())
    cache.check_integrity()


async def test_others_are_served_between_two_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request waits for a slice at most, of the walk and of the change."""
    monkeypatch.setattr(slices, "SLICE_PAGES", 4)
    cache = new_cache()
    seen: list[int] = []

    async def others() -> None:
        while True:
            seen.append(cache.num_pages)
            await asyncio.sleep(0)

    waiting = asyncio.create_task(others())
    await service_of(cache, _Redis()).evict(pb.EvictRequest(selection=ALL), ME)
    waiting.cancel()
    assert NUM_PAGES // 4 <= seen.count(NUM_PAGES)
    assert set(range(0, NUM_PAGES + 1, 4)) <= set(seen)


def test_a_walk_for_idle_pages_stops_at_others_too() -> None:
    """Where hardly any page is idle the walk to the next one would be the long one."""
    cache = new_cache()
    cache.match(TRUNK, lease_ttl_s=0, now_s=50)
    steps = list(cache.selecting(Idle(idle_s=20), now_s=60))
    assert NUM_PAGES == len(steps)
    assert {*TWIG, *OTHER} == {step for step in steps if step is not None}


async def test_an_evict_that_is_broken_off_says_what_went(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What went is gone, so the audit log has it."""
    monkeypatch.setattr(slices, "SLICE_PAGES", 4)
    cache, redis = new_cache(), _Redis()
    call = asyncio.create_task(service_of(cache, redis).evict(pb.EvictRequest(selection=ALL), ME))
    while cache.num_pages == NUM_PAGES:
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    (deed,) = redis.deeds
    assert NUM_PAGES - cache.num_pages == deed.num_pages
    assert (ME.peer, ME.name) == (deed.peer, deed.caller)
    assert 0 < cache.num_pages < NUM_PAGES


async def test_a_pin_that_is_broken_off_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    """Redis was not told of it, so after a restart nothing of it would be left."""
    monkeypatch.setattr(slices, "SLICE_PAGES", 4)
    cache, redis = new_cache(), _Redis()
    store_thread: Any = redis
    kept = KeptState(cache, store_thread, on_saved=lambda: None)
    monkeypatch.setattr(redis, "changing", kept.changing)
    call = asyncio.create_task(service_of(cache, redis).pin(pb.PinRequest(selection=ALL), ME))
    while not cache.all_pins.all():
        await asyncio.sleep(0)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert [] == cache.all_pins.all()
    assert [] == redis.deeds
    cache.check_integrity()
