"""One replica evicts for all, and another one follows it."""

from __future__ import annotations

import asyncio
import contextlib
import time

import pytest
from prometheus_client import REGISTRY

from chunkmesh.v1 import hicache_pb2 as pb
from hicache import doomed
from hicache.replication import stream
from hicache.replication.election import TTL_S
from tests.eventually import eventually
from tests.forked_services import Services
from tests.page_samples import chain
from tests.replicas import (
    ALL,
    DIGESTS,
    PAGE_BYTES,
    SOON_S,
    commit,
    elected,
    evictor,
    found,
    has_leases,
    has_pages,
    lease,
    num_found,
    num_leases,
    pages_and_evictions,
    replica,
    replicas,
    state_of,
    stats_of,
    write,
)
from tests.valkey import Valkey


async def test_only_one_evicts(valkey: Valkey) -> None:
    """Three replicas that make room would throw away three times as much."""
    async with replicas(valkey, 3, max_bytes=6 * PAGE_BYTES) as all_of_them:
        for index, hicache in enumerate(all_of_them * 2):
            await commit(valkey, hicache, chain(3, name=f"prompt {index}"))

        async def settled() -> bool:
            counts = [await stats_of(hicache) for hicache in all_of_them]
            return all(stats.num_pages == 6 for stats in counts)

        await eventually(settled)
        await eventually(lambda: has_pages(valkey, 6))
        counts = [await stats_of(hicache) for hicache in all_of_them]
        assert [0, 0, 12] == sorted(stats.num_evicted_pages for stats in counts)


async def test_a_page_that_is_used_at_one_is_not_old_at_the_other(valkey: Valkey) -> None:
    """The evictor may never be asked itself, and still keeps what is in use."""
    async with replicas(valkey, 2, max_bytes=4 * PAGE_BYTES) as (first, second):
        hot, cold = chain(2, name="hot"), chain(2, name="cold")
        await commit(valkey, first, hot)
        await commit(valkey, first, cold)
        await eventually(lambda: found(second, 2, cold))
        await second.Match(pb.MatchRequest(digests=hot))

        async def counted() -> bool:
            return (await state_of(first)).num_hits == 1

        await eventually(counted, within_s=SOON_S)
        await commit(valkey, first, chain(2, name="new"))
        assert [2, 0] == [await num_found(first, prompt) for prompt in (hot, cold)]


async def test_an_evictor_that_is_killed_is_followed(valkey: Valkey, services: Services) -> None:
    """A key that ends by itself; whoever follows evicts what is too much."""
    command = ("hicache-server", f"--redis-url={valkey.url}", "--port=0", "--http-port=0")
    with services.started(*command) as process:
        await eventually(lambda: elected(valkey))
        killed = evictor(valkey)
        async with replica(valkey, max_bytes=2 * PAGE_BYTES) as hicache:
            await commit(valkey, hicache)
            await asyncio.sleep(0.3)
            assert (4, 0) == await pages_and_evictions(hicache)
            assert killed == evictor(valkey)
            process.kill()
            process.wait(10)
            with valkey.client() as client:
                assert client.pttl("cm-evictor") <= 1000 * TTL_S

            async def evicted() -> bool:
                return await pages_and_evictions(hicache) == (2, 2)

            await eventually(evicted)
            assert killed != evictor(valkey)


async def test_an_evictor_that_stops_makes_room_at_once(valkey: Valkey) -> None:
    """A rolling update leaves no time without an evictor."""
    async with contextlib.AsyncExitStack() as stack:
        stopping = await stack.enter_async_context(contextlib.AsyncExitStack())
        await stopping.enter_async_context(replica(valkey))
        name = evictor(valkey)
        assert name
        await stack.enter_async_context(replica(valkey))
        assert name == evictor(valkey)
        await stopping.aclose()

        async def followed() -> bool:
            return evictor(valkey) not in {"", name}

        await eventually(followed, within_s=SOON_S)
    assert evictor(valkey) == ""


async def test_without_redis_nobody_evicts(valkey: Valkey) -> None:
    """Who cannot hear the others must not make room for all."""
    async with replica(valkey, max_bytes=2 * PAGE_BYTES) as hicache:
        assert 1.0 == REGISTRY.get_sample_value("chunkmesh_hicache_evicts")
        await commit(valkey, hicache, DIGESTS[:2])
        valkey.stop()

        async def is_down() -> bool:
            return REGISTRY.get_sample_value("chunkmesh_hicache_evicts") == 0.0

        await eventually(is_down)


async def test_a_full_redis_still_has_an_evictor(valkey: Valkey) -> None:
    """Redis refuses the key as it refuses all; without eviction it would stay full for ever."""
    write([valkey], DIGESTS)
    with valkey.client() as client:
        client.config_set("maxmemory", 1)
    async with replica(valkey, max_bytes=2 * PAGE_BYTES) as hicache:

        async def evicted() -> bool:
            return await pages_and_evictions(hicache) == (2, 2)

        await eventually(evicted)
        await eventually(lambda: has_pages(valkey, 2))
        with valkey.client() as client:
            client.config_set("maxmemory", 0)
        await eventually(lambda: elected(valkey))


async def test_a_lease_at_one_holds_pages_at_the_others(valkey: Valkey) -> None:
    """Also at a replica that started later, and until it is released."""
    async with replica(valkey) as first:
        await commit(valkey, first)
        lease_id = await lease(first)
        async with replica(valkey) as second:
            evict = pb.EvictRequest(selection=ALL)
            await eventually(lambda: has_leases(second, 1), within_s=SOON_S)
            assert (0, 4) == numbers(await second.Evict(evict))
            await first.ReleaseLease(pb.ReleaseLeaseRequest(lease_id=lease_id))
            await eventually(lambda: has_leases(second, 0), within_s=SOON_S)
            lease_id = await lease(second)
            await eventually(lambda: has_leases(first, 1), within_s=SOON_S)
            assert (0, 4) == numbers(await first.Evict(evict))
            await second.ReleaseLease(pb.ReleaseLeaseRequest(lease_id=lease_id))
            await eventually(lambda: has_leases(first, 0), within_s=SOON_S)
            assert (4, 0) == numbers(await first.Evict(evict))


async def test_a_lease_may_be_renewed_at_any_replica(valkey: Valkey) -> None:
    """It is live everywhere beyond its first end, and ends everywhere."""
    async with replicas(valkey, 2) as (first, second):
        await commit(valkey, first)
        for ttl_s in (1, 2, 4, 8, 16):  # until this machine is fast enough for it
            lease_id = await lease(first, ttl_ms=1000 * ttl_s)
            ends_s = time.monotonic() + ttl_s
            await eventually(lambda: has_leases(second, 1), within_s=SOON_S)
            renewed_s = time.monotonic()
            renew = pb.RenewLeasesRequest(lease_ids=[lease_id], lease_ttl_ms=2000 * ttl_s)
            ended_ids = list((await second.RenewLeases(renew)).ended_ids)
            await asyncio.sleep(max(0.0, ends_s - time.monotonic()))
            live = [await num_leases(hicache) for hicache in (first, second)]
            if not ended_ids and time.monotonic() < renewed_s + 2 * ttl_s:
                break
            await first.ReleaseLease(pb.ReleaseLeaseRequest(lease_id=lease_id))
            await eventually(lambda: has_leases(second, 0))
        assert ([], [1, 1]) == (ended_ids, live)
        await eventually(lambda: has_leases(first, 0))
        await eventually(lambda: has_leases(second, 0))


def numbers(reply: pb.EvictResponse) -> tuple[int, int]:
    """Return pages that went and pages that stay."""
    return reply.num_pages, reply.num_held_pages


async def test_a_lease_given_in_the_moment_of_an_eviction_saves_the_pages(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The victims are unlinked 2 s later, unless a lease became known meanwhile."""
    async with replicas(valkey, 2) as (first, second):
        await commit(valkey, first)
        await eventually(lambda: found(second, 4))
        with monkeypatch.context() as deaf:
            deaf.setattr(stream, "read", lambda _store, _place: [])
            given = await lease(second)
            gone = await first.Evict(pb.EvictRequest(selection=ALL))
        assert given
        assert 4 == gone.num_pages
        await asyncio.sleep(doomed.WAIT_S + 0.5)
        assert 4 == len(valkey.page_keys())
        await second.ReleaseLease(pb.ReleaseLeaseRequest(lease_id=given))
        await eventually(lambda: has_pages(valkey, 0))
