"""Pins, quotas and infos outlive HiCache and Redis, and what meets the worst of both."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator

import grpc
import pytest

from chunkmesh.kv_store import KvStore
from chunkmesh.v1 import hicache_pb2 as pb
from chunkmesh.v1 import hicache_pb2_grpc
from hicache.server import running
from hicache.settings import HiCacheSettings
from tests.eventually import eventually
from tests.filled_hicache import ALL, DIGESTS, digest_list, filled, hicache_at, state_of
from tests.hicache_admin import INFO, PAGE_BYTES, store_pages
from tests.page_samples import NAMESPACE, chain, encoded
from tests.valkey import Valkey


async def test_a_restart_keeps_pins_quotas_and_infos(valkey: Valkey) -> None:
    """Nothing but Redis remembers; an unpinned page is not pinned again by it."""
    async with filled(valkey) as hicache:
        await hicache.Pin(pb.PinRequest(selection=ALL))
        below = pb.Selection(below=DIGESTS[2])
        await hicache.Unpin(pb.UnpinRequest(selection=below))
        await hicache.SetQuota(pb.SetQuotaRequest(namespace=NAMESPACE, max_bytes=9 * PAGE_BYTES))
        with valkey.client() as client:

            async def saved() -> bool:
                return bool(client.exists(f"cm-ns:{NAMESPACE.hex()}"))

            await eventually(saved)
            assert 0 < client.ttl(f"cm-ns:{NAMESPACE.hex()}") <= 7 * 86_400
    async with hicache_at(valkey) as hicache:
        state = await state_of(hicache)
        assert (4, 2, 9 * PAGE_BYTES) == (
            state.num_pages,
            state.num_pinned_pages,
            state.quota_bytes,
        )
        assert INFO == state.info
        await hicache.Unpin(pb.UnpinRequest(selection=ALL))
        await hicache.SetQuota(pb.SetQuotaRequest(namespace=NAMESPACE))
    async with hicache_at(valkey) as hicache:
        state = await state_of(hicache)
        assert (0, 0) == (state.num_pinned_pages, state.quota_bytes)


async def test_pins_are_known_before_pages_after_a_restart(valkey: Valkey) -> None:
    """With a budget that holds two pages, the two pinned ones are those that stay."""
    async with filled(valkey) as hicache:
        await hicache.Pin(pb.PinRequest(selection=pb.Selection(prompt=digest_list(DIGESTS[:2]))))
        await hicache.Evict(pb.EvictRequest(selection=pb.Selection(below=DIGESTS[2])))
        store = KvStore(valkey.url)
        other = chain(6, name="other")
        store.write_pages(encoded(other, range(4)))
        store.close()
    settings = HiCacheSettings(
        port=0, http_port=0, redis_url=(valkey.url,), max_bytes=2 * PAGE_BYTES
    )
    async with (
        running(settings, ping_s=0.05) as address,
        grpc.aio.insecure_channel(str(address)) as link,
    ):
        hicache = hicache_pb2_grpc.HiCacheStub(link)

        async def trimmed() -> bool:
            stats = await hicache.GetStats(pb.GetStatsRequest())
            return stats.num_evicted_pages >= 6 and not stats.rebuilding

        await eventually(trimmed)
        found = await hicache.Match(pb.MatchRequest(digests=DIGESTS))
        assert 2 == found.num_pages


async def test_a_pin_of_limited_time_ends_also_over_a_restart(valkey: Valkey) -> None:
    """Its end is a time of day, not a time since the start."""
    async with filled(valkey) as hicache:
        begun_s = time.monotonic()
        await hicache.Pin(pb.PinRequest(selection=ALL, ttl_ms=1500))
    async with hicache_at(valkey) as hicache:

        async def ended() -> bool:
            num_pinned_pages = (await state_of(hicache)).num_pinned_pages
            assert num_pinned_pages == 4 or time.monotonic() >= begun_s + 1.5
            return num_pinned_pages == 0

        await eventually(ended)


async def test_an_emptied_redis_gets_what_is_still_known(valkey: Valkey) -> None:
    """A Redis without a disk forgets quotas at its restart; HiCache does not."""
    async with filled(valkey) as hicache:
        await hicache.SetQuota(pb.SetQuotaRequest(namespace=NAMESPACE, max_bytes=9 * PAGE_BYTES))
        await hicache.Pin(pb.PinRequest(selection=ALL))
        valkey.stop()
        valkey.start()
        with valkey.client() as client:

            async def restored() -> bool:
                return bool(client.hlen("cm-pins") == 4 and client.hlen("cm-quotas") == 1)

            await eventually(restored)
        assert 9 * PAGE_BYTES == (await state_of(hicache)).quota_bytes


async def test_what_stands_in_redis_is_not_believed(valkey: Valkey) -> None:
    """Hostile fields of pins, quotas, infos and the log are passed over; nothing fails."""
    with valkey.client() as client:
        client.hset("cm-kept", "version", "1")
        client.hset("cm-pins", mapping={"zz": "0", "00": "0", DIGESTS[0].hex(): "-1"})
        client.hset("cm-pins", DIGESTS[1].hex(), "9" * 30)
        client.hset("cm-quotas", mapping={NAMESPACE.hex(): "much", "\xff": "1"})
        client.set(f"cm-ns:{NAMESPACE.hex()}", "no hash")
        client.xadd("cm-audit", {"peer": b"\xff"})
    store = KvStore(valkey.url)
    store.write_pages(encoded(DIGESTS, range(4)))
    store.close()
    async with hicache_at(valkey) as hicache:
        state = await state_of(hicache)
        assert (4, 0, 0) == (state.num_pages, state.num_pinned_pages, state.quota_bytes)
        assert not state.HasField("info")
        assert [] == list((await hicache.GetAuditLog(pb.GetAuditLogRequest())).entries)


async def test_a_refused_pin_leaves_no_trace(valkey: Valkey) -> None:
    """Redis went away in the moment of the change: the caller hears it, and nothing is pinned."""
    async with filled(valkey) as hicache:
        with valkey.client() as client:
            client.delete("cm-pins")
            client.set("cm-pins", "no hash")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await hicache.Pin(pb.PinRequest(selection=ALL))
        assert grpc.StatusCode.UNAVAILABLE is caught.value.code()
        assert 0 == (await state_of(hicache)).num_pinned_pages


async def test_a_quota_that_redis_refuses_deletes_nothing(valkey: Valkey) -> None:
    """O20 (a): a full Redis takes no quota, so the pages over it must not go."""
    async with filled(valkey) as hicache:
        with valkey.client() as client:
            client.config_set("maxmemory", 1)
            with pytest.raises(grpc.aio.AioRpcError) as caught:
                await hicache.SetQuota(pb.SetQuotaRequest(namespace=NAMESPACE, max_bytes=1))
            client.config_set("maxmemory", 0)
        assert grpc.StatusCode.UNAVAILABLE is caught.value.code()
        state = await state_of(hicache)
        assert (4, 0) == (state.num_pages, state.quota_bytes)


async def test_the_largest_quota_outlives_a_restart(valkey: Valkey) -> None:
    """What is accepted is also read back."""
    most = (1 << 63) - 1
    async with filled(valkey) as hicache:
        await hicache.SetQuota(pb.SetQuotaRequest(namespace=NAMESPACE, max_bytes=most))
    async with hicache_at(valkey) as hicache:
        assert most == (await state_of(hicache)).quota_bytes


@contextlib.asynccontextmanager
async def without_unlink(valkey: Valkey) -> AsyncIterator[hicache_pb2_grpc.HiCacheAsyncStub]:
    """Run a HiCache that holds DIGESTS, over a Redis that lets it delete no key."""
    with valkey.client() as client:
        client.execute_command("ACL", "SETUSER", "u", "on", ">p", "~*", "&*", "+@all", "-unlink")
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url.replace("//", "//u:p@"),))
    async with (
        running(settings, ping_s=0.05) as address,
        grpc.aio.insecure_channel(str(address)) as link,
    ):
        hicache = hicache_pb2_grpc.HiCacheStub(link)

        async def ready() -> bool:
            stats = await hicache.GetStats(pb.GetStatsRequest())
            return not stats.rebuilding and not stats.redis_fault

        await eventually(ready)
        await store_pages(valkey, str(address), DIGESTS)
        yield hicache


async def test_a_clear_that_redis_refuses_forgets_no_page(valkey: Valkey) -> None:
    """What is still in Redis is found and bounded again, and the log tells of the attempt."""
    async with without_unlink(valkey) as hicache:
        with pytest.raises(grpc.aio.AioRpcError):
            await hicache.Clear(pb.ClearRequest())

        async def found() -> bool:
            return (await hicache.GetStats(pb.GetStatsRequest())).num_pages == 4

        await eventually(found)
        (entry,) = (await hicache.GetAuditLog(pb.GetAuditLogRequest())).entries
        assert ("Clear", 0) == (entry.method, entry.num_pages)
        assert entry.request.startswith("all pages: failed, ")


async def test_a_redis_that_deletes_nothing_is_still_read(valkey: Valkey) -> None:
    """A read-only server, or a user without UNLINK: what is known there stays a hit."""
    async with without_unlink(valkey) as hicache:
        await hicache.Invalidate(pb.InvalidateRequest(digests=DIGESTS[3:]))
        for _ in range(10):
            await asyncio.sleep(0.05)
            assert not (await hicache.GetStats(pb.GetStatsRequest())).redis_fault
            assert 3 == (await hicache.Match(pb.MatchRequest(digests=DIGESTS))).num_pages


async def test_the_log_waits_for_a_full_redis(valkey: Valkey) -> None:
    """O20 (a): who made room in a full Redis is told once there is room."""
    async with filled(valkey) as hicache:
        with valkey.client() as client:
            client.config_set("maxmemory", 1)
            await hicache.Evict(pb.EvictRequest(selection=pb.Selection(below=DIGESTS[3])))
            await hicache.Evict(pb.EvictRequest(selection=pb.Selection(below=DIGESTS[2])))
            assert [] == list((await hicache.GetAuditLog(pb.GetAuditLogRequest())).entries)
            client.config_set("maxmemory", 0)
        for _ in range(2):
            entries = (await hicache.GetAuditLog(pb.GetAuditLogRequest())).entries
            told = [entry.request.split()[1] for entry in entries]
            assert [DIGESTS[2].hex()[:12], DIGESTS[3].hex()[:12]] == told


@pytest.mark.parametrize(
    ("call", "request_message", "words"),
    [
        ("Pin", pb.PinRequest(), "no pages"),
        ("Evict", pb.EvictRequest(selection=pb.Selection(below=b"abc")), "3 bytes"),
        ("SetQuota", pb.SetQuotaRequest(namespace=b"short", max_bytes=1), "5 bytes"),
        ("SetQuota", pb.SetQuotaRequest(namespace=NAMESPACE, max_bytes=1 << 63), "at most"),
        ("Pin", pb.PinRequest(selection=ALL, ttl_ms=1 << 63), "at most"),
        ("ListRuns", pb.ListRunsRequest(limit=100_001), "100000"),
        ("ListRuns", pb.ListRunsRequest(namespace=b"short"), "5 bytes"),
        ("GetAuditLog", pb.GetAuditLogRequest(limit=10_001), "10000"),
        ("RenewLeases", pb.RenewLeasesRequest(lease_ids=["a"]), "0 ms"),
    ],
)
async def test_nonsense_is_refused(
    valkey: Valkey, call: str, request_message: object, words: str
) -> None:
    """The value and the limit are named."""
    async with hicache_at(valkey) as hicache:
        with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
            await getattr(hicache, call)(request_message)
        assert grpc.StatusCode.INVALID_ARGUMENT is caught.value.code()


async def test_leases_are_renewed(valkey: Valkey) -> None:
    """A long prompt keeps its pages; an ended lease is told as such."""
    async with filled(valkey) as hicache:
        for ttl_ms in (300, 1000, 3000, 10_000):  # until this machine is fast enough for it
            found = await hicache.Match(pb.MatchRequest(digests=DIGESTS, lease_ttl_ms=ttl_ms))
            ends_s = time.monotonic() + ttl_ms / 1000
            renew = pb.RenewLeasesRequest(
                lease_ids=[found.lease_id, "other"], lease_ttl_ms=2 * ttl_ms
            )
            renewed_s = time.monotonic()
            ended_ids = list((await hicache.RenewLeases(renew)).ended_ids)
            await asyncio.sleep(max(0.0, ends_s - time.monotonic()))
            evicted = await hicache.Evict(pb.EvictRequest(selection=ALL, dry_run=True))
            if time.monotonic() < renewed_s + 2 * ttl_ms / 1000:
                break
        assert (["other"], 0, 4) == (ended_ids, evicted.num_pages, evicted.num_held_pages)


async def test_a_watcher_does_not_hold_up_the_end(valkey: Valkey) -> None:
    """Its stream ends at once, without waiting for the grace that running calls have."""
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
    async with contextlib.AsyncExitStack() as links:
        async with running(settings, ping_s=0.05) as address:
            link = await links.enter_async_context(grpc.aio.insecure_channel(str(address)))
            hicache = hicache_pb2_grpc.HiCacheStub(link)
            heard = asyncio.ensure_future(anext(aiter(hicache.Watch(pb.WatchRequest()))))
            while not heard.done():
                await hicache.Match(pb.MatchRequest(digests=DIGESTS))
                await asyncio.sleep(0.02)
            started_s = time.monotonic()
        assert time.monotonic() - started_s < 5  # the grace
