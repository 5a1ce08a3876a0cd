"""hicache-server over a real Redis: commits, rebuilds, flushes, restarts, eviction."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chunkmesh.grpc_client import channel
from chunkmesh.kv_store import KvStore
from chunkmesh.stored_page import page_key
from chunkmesh.v1 import common_pb2, hicache_pb2, hicache_pb2_grpc
from hicache.server import running
from hicache.settings import HiCacheSettings
from tests.eventually import eventually
from tests.page_samples import FORM, NAMESPACE, chain, encoded, parents
from tests.valkey import Valkey

DIGESTS = chain(5)
PAGE_BYTES = FORM.model_layers * FORM.layer_bytes


@contextlib.asynccontextmanager
async def hicache_over(
    url: str, *, max_bytes: int = 0
) -> AsyncIterator[hicache_pb2_grpc.HiCacheAsyncStub]:
    """Run a HiCache in this process and yield a stub to it."""
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(url,), max_bytes=max_bytes)
    async with running(settings, ping_s=0.05) as address, channel(address) as link:
        yield hicache_pb2_grpc.HiCacheStub(link)


def write(valkey: Valkey, digests: tuple[bytes, ...], layers: range = range(4)) -> None:
    """Store pages as a worker does."""
    store = KvStore(valkey.url)
    assert all(store.write_pages(encoded(digests, layers)))
    store.close()


async def commit(
    hicache: hicache_pb2_grpc.HiCacheAsyncStub,
    digests: tuple[bytes, ...],
    layers: range = range(4),
) -> int:
    """Report pages as the scheduler does."""
    request = hicache_pb2.CommitRequest(
        namespace=NAMESPACE,
        pages=[
            hicache_pb2.CommittedPage(digest=digest, parent=parent)
            for digest, parent in zip(digests, parents(digests), strict=True)
        ],
        layers=common_pb2.LayerRange(first=layers.start, last=layers.stop),
        model_layers=FORM.model_layers,
        page_bytes=len(layers) * FORM.layer_bytes,
    )
    return (await hicache.Commit(request)).num_visible


async def matched(
    hicache: hicache_pb2_grpc.HiCacheAsyncStub,
    digests: tuple[bytes, ...] = DIGESTS,
    *,
    lease_ttl_ms: int = 0,
) -> hicache_pb2.MatchResponse:
    """Ask for a prefix."""
    request = hicache_pb2.MatchRequest(digests=digests, lease_ttl_ms=lease_ttl_ms)
    return await hicache.Match(request)


async def ready(hicache: hicache_pb2_grpc.HiCacheAsyncStub) -> None:
    """Wait until Redis answers and the index is built."""

    async def check() -> bool:
        stats = await hicache.GetStats(hicache_pb2.GetStatsRequest())
        return not stats.redis_fault and not stats.rebuilding

    await eventually(check)


async def test_pages_become_visible_when_all_layers_are_committed(valkey: Valkey) -> None:
    """Two stages commit in any order; a request sees a page only with both parts."""
    async with hicache_over(valkey.url) as hicache:
        await ready(hicache)
        write(valkey, DIGESTS)
        assert await commit(hicache, DIGESTS, range(2, 4)) == 0
        assert (await matched(hicache)).num_pages == 0
        assert await commit(hicache, DIGESTS[:3], range(2)) == 3
        assert (await matched(hicache)).num_pages == 3
        stats = await hicache.GetStats(hicache_pb2.GetStatsRequest())
        assert (stats.num_pages, stats.num_partial_pages) == (3, 2)
        assert stats.num_bytes == 3 * PAGE_BYTES + 2 * PAGE_BYTES // 2
        assert (stats.num_queries, stats.num_queried_pages, stats.num_hit_pages) == (2, 10, 3)
        assert stats.redis_version == "valkey 7.2.4"


async def test_the_index_is_rebuilt_after_a_restart(valkey: Valkey) -> None:
    """Nothing but Redis remembers; parts of two writers count together."""
    write(valkey, DIGESTS[:4], range(3))
    write(valkey, DIGESTS[:3], range(3, 4))
    async with hicache_over(valkey.url) as hicache:
        await ready(hicache)
        assert (await matched(hicache)).num_pages == 3


async def test_a_flush_is_noticed(valkey: Valkey) -> None:
    """O20 (b): the tree forgets pages that are gone."""
    async with hicache_over(valkey.url) as hicache:
        await ready(hicache)
        write(valkey, DIGESTS)
        await commit(hicache, DIGESTS)
        with valkey.client() as client:
            client.flushall()

        async def forgotten() -> bool:
            return (await matched(hicache)).num_pages == 0

        await eventually(forgotten)
        await ready(hicache)
        write(valkey, DIGESTS)
        assert await commit(hicache, DIGESTS) == 5


async def test_while_redis_is_away_everything_is_a_miss(valkey: Valkey) -> None:
    """Down, then up again without anybody's help, and nothing of before is believed."""
    async with hicache_over(valkey.url) as hicache:
        await ready(hicache)
        write(valkey, DIGESTS)
        await commit(hicache, DIGESTS)
        valkey.stop()

        async def down() -> bool:
            stats = await hicache.GetStats(hicache_pb2.GetStatsRequest())
            return bool(stats.redis_fault)

        await eventually(down)
        assert (await matched(hicache, lease_ttl_ms=1000)) == hicache_pb2.MatchResponse()
        valkey.start()
        await ready(hicache)
        assert (await matched(hicache)).num_pages == 0
        write(valkey, DIGESTS)
        assert await commit(hicache, DIGESTS) == 5
        assert (await matched(hicache)).num_pages == 5


async def test_it_starts_without_redis(valkey: Valkey) -> None:
    """The order in which services start must not matter."""
    write(valkey, DIGESTS)
    valkey.stop()
    async with hicache_over(valkey.url) as hicache:
        assert (await matched(hicache)).num_pages == 0
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await hicache.Clear(hicache_pb2.ClearRequest(dry_run=True))
        assert caught.value.code() is grpc.StatusCode.UNAVAILABLE
        valkey.start()
        await ready(hicache)


async def test_invalid_pages_leave_redis_too(valkey: Valkey) -> None:
    """O18: the hit ends at the hole; what hung below is deleted and can be stored again."""
    async with hicache_over(valkey.url) as hicache:
        await ready(hicache)
        write(valkey, DIGESTS)
        await commit(hicache, DIGESTS)
        with valkey.client() as client:
            client.delete(page_key(DIGESTS[2]))
            request = hicache_pb2.InvalidateRequest(digests=[DIGESTS[2]])
            assert (await hicache.Invalidate(request)).num_pages == 3
            assert (await matched(hicache)).num_pages == 2

            async def deleted() -> bool:
                return len(valkey.page_keys()) == 2

            await eventually(deleted)
        write(valkey, DIGESTS)
        assert await commit(hicache, DIGESTS) == 3


async def test_the_budget_is_kept_in_redis(valkey: Valkey) -> None:
    """Eviction takes the ends of unleased prompts, in the index and in Redis."""
    async with hicache_over(valkey.url, max_bytes=6 * PAGE_BYTES) as hicache:
        await ready(hicache)
        write(valkey, DIGESTS)
        await commit(hicache, DIGESTS)
        lease_id = (await matched(hicache, DIGESTS[:2], lease_ttl_ms=60_000)).lease_id
        assert lease_id
        other = chain(4, name="other")
        write(valkey, other)
        await commit(hicache, other)
        stats = await hicache.GetStats(hicache_pb2.GetStatsRequest())
        assert stats.num_bytes <= 6 * PAGE_BYTES
        assert (stats.num_evicted_pages, stats.num_leases) == (3, 1)
        assert (await matched(hicache)).num_pages == 2

        async def deleted() -> bool:
            return len(valkey.page_keys()) == 6

        await eventually(deleted)
        await hicache.ReleaseLease(hicache_pb2.ReleaseLeaseRequest(lease_id=lease_id))
        stats = await hicache.GetStats(hicache_pb2.GetStatsRequest())
        assert stats.num_leases == 0


async def test_clear_deletes_pages_and_nothing_else(valkey: Valkey) -> None:
    """The server may be shared with others; the audit log stays, too."""
    async with hicache_over(valkey.url) as hicache:
        await ready(hicache)
        write(valkey, DIGESTS)
        await commit(hicache, DIGESTS)
        with valkey.client() as client:
            client.set("unrelated", b"x")
            dry = await hicache.Clear(hicache_pb2.ClearRequest(dry_run=True))
            assert (dry.num_pages, dry.num_bytes) == (5, 5 * PAGE_BYTES)
            assert len(valkey.page_keys()) == 5
            assert dry == await hicache.Clear(hicache_pb2.ClearRequest())
            assert valkey.page_keys() == []
            assert client.exists("cm-audit", "unrelated") == 2
        assert (await matched(hicache)).num_pages == 0


async def test_lookup_shows_layers_without_touching(valkey: Valkey) -> None:
    """An admin sees which part is missing."""
    async with hicache_over(valkey.url) as hicache:
        await ready(hicache)
        await commit(hicache, DIGESTS[:2])
        await commit(hicache, DIGESTS[:3], range(1, 2))
        reply = await hicache.Lookup(hicache_pb2.LookupRequest(digests=DIGESTS))
        layers = [[(part.first, part.last) for part in page.layers] for page in reply.pages]
        assert layers == [[(0, 4)], [(0, 4)], [(1, 2)], [], []]
        assert reply.num_matched == 2
        assert [page.num_hits for page in reply.pages] == [0] * 5


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"namespace": b"short"}, "5 bytes"),
        ({"model_layers": 0}, "0 layers"),
        ({"model_layers": 5000}, "4096"),
        ({"layers": common_pb2.LayerRange(first=2, last=5)}, r"\[2, 5\)"),
        ({"layers": common_pb2.LayerRange(first=2, last=2)}, r"\[2, 2\)"),
        ({"pages": [hicache_pb2.CommittedPage(digest=b"x", parent=NAMESPACE)]}, "1 bytes"),
    ],
)
async def test_nonsense_is_refused(valkey: Valkey, change: dict[str, object], words: str) -> None:
    """The value and the limit are named."""
    request = hicache_pb2.CommitRequest(
        namespace=NAMESPACE,
        layers=common_pb2.LayerRange(first=0, last=4),
        model_layers=4,
        page_bytes=4,
    )
    for name in change:
        request.ClearField(name)  # type: ignore[arg-type]
    request.MergeFrom(hicache_pb2.CommitRequest(**change))  # type: ignore[arg-type]
    async with hicache_over(valkey.url) as hicache:
        with pytest.raises(grpc.aio.AioRpcError, match=words) as caught:
            await hicache.Commit(request)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


async def test_health_is_serving(valkey: Valkey) -> None:
    """A cache without Redis still answers, so it is healthy either way."""
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
    async with running(settings) as address, channel(address) as link:
        health: Any = health_pb2_grpc.HealthStub(link)
        request = health_pb2.HealthCheckRequest(service="chunkmesh.v1.HiCache")
        assert (await health.Check(request)).status == health_pb2.HealthCheckResponse.SERVING


async def test_a_cache_that_ends_says_so_at_once(valkey: Valkey) -> None:
    """Whoever watches its health hears it, and a new call is refused."""
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
    async with contextlib.AsyncExitStack() as ending:
        address = await ending.enter_async_context(running(settings))
        async with channel(address) as link:
            health: Any = health_pb2_grpc.HealthStub(link)
            watch = health.Watch(health_pb2.HealthCheckRequest(service=""), timeout=10)
            responses = aiter(watch)
            heard = [(await anext(responses)).status]
            await ending.aclose()
            heard += [response.status async for response in responses]
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await hicache_pb2_grpc.HiCacheStub(link).GetStats(
                    hicache_pb2.GetStatsRequest(), timeout=5
                )
    said = health_pb2.HealthCheckResponse
    assert [said.SERVING, said.NOT_SERVING] == heard
    assert grpc.StatusCode.UNAVAILABLE is refused.value.code()
