"""Several HiCaches over one Redis agree, whoever of them is asked, and whoever dies."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from typing import TypeAlias

import grpc
import pytest
from prometheus_client import REGISTRY

from chunkmesh.kv_store import KvStore
from chunkmesh.v1 import common_pb2, hicache_pb2_grpc
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.replication import stream
from hicache.server import running
from hicache.settings import HiCacheSettings
from tests.hicache_admin import INFO
from tests.page_samples import FORM, NAMESPACE, chain, encoded, parents
from tests.valkey import Valkey, running_valkey

DIGESTS = chain(4)
PAGE_BYTES = FORM.model_layers * FORM.layer_bytes
ALL = pb.Selection(everything=True)
SOON_S = 1.0
"""Within which a change through one replica is seen by the others."""
WAIT_S = 15.0

HiCache: TypeAlias = "hicache_pb2_grpc.HiCacheAsyncStub"


@pytest.fixture
def valkey(tmp_path: pathlib.Path) -> Iterator[Valkey]:
    """Run an empty server."""
    with running_valkey(tmp_path) as server:
        yield server


@contextlib.asynccontextmanager
async def replica(valkey: Valkey, *, max_bytes: int = 0) -> AsyncIterator[HiCache]:
    """Run a HiCache whose index is built, and yield a stub to it."""
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,), max_bytes=max_bytes)
    async with (
        running(settings, ping_s=0.05) as address,
        grpc.aio.insecure_channel(str(address)) as link,
    ):
        hicache = hicache_pb2_grpc.HiCacheStub(link)
        await eventually(lambda: is_ready(hicache))
        yield hicache


@contextlib.asynccontextmanager
async def replicas(
    valkey: Valkey, num_replicas: int, *, max_bytes: int = 0
) -> AsyncIterator[tuple[HiCache, ...]]:
    """Run several."""
    async with contextlib.AsyncExitStack() as stack:
        yield tuple(
            [
                await stack.enter_async_context(replica(valkey, max_bytes=max_bytes))
                for _ in range(num_replicas)
            ]
        )


async def eventually(check: Callable[[], Awaitable[bool]], *, within_s: float = WAIT_S) -> None:
    """Wait until the check holds."""
    async with asyncio.timeout(within_s):
        while not await check():
            await asyncio.sleep(0.02)


async def is_ready(hicache: HiCache) -> bool:
    """Return whether the index is built."""
    stats = await stats_of(hicache)
    return not stats.redis_fault and not stats.rebuilding


async def stats_of(hicache: HiCache) -> pb.GetStatsResponse:
    """Ask for counts."""
    return await hicache.GetStats(pb.GetStatsRequest())


async def state_of(hicache: HiCache) -> pb.NamespaceState:
    """Return the state of the one namespace, or nothing yet."""
    states = (await hicache.ListNamespaces(pb.ListNamespacesRequest())).namespaces
    return states[0] if states else pb.NamespaceState()


async def num_found(hicache: HiCache, digests: Sequence[bytes] = DIGESTS) -> int:
    """Count the leading pages, without a trace."""
    return (await hicache.Lookup(pb.LookupRequest(digests=digests))).num_matched


async def lease(hicache: HiCache, *, ttl_ms: int = 60_000) -> str:
    """Lease the prompt."""
    request = pb.MatchRequest(digests=DIGESTS, lease_ttl_ms=ttl_ms)
    return (await hicache.Match(request)).lease_id


def write(valkey: Valkey, digests: Sequence[bytes], layers: range = range(4)) -> None:
    """Store pages as a worker does."""
    store = KvStore(valkey.url)
    assert all(store.write_pages(encoded(tuple(digests), layers)))
    store.close()


async def commit(
    valkey: Valkey,
    hicache: HiCache,
    digests: Sequence[bytes] = DIGESTS,
    layers: range = range(4),
) -> int:
    """Store pages and report them as worker and scheduler do; return how many became visible."""
    await asyncio.to_thread(write, valkey, digests, layers)
    pages = tuple(digests)
    request = pb.CommitRequest(
        namespace=NAMESPACE,
        pages=[
            pb.CommittedPage(digest=digest, parent=parent)
            for digest, parent in zip(pages, parents(pages), strict=True)
        ],
        layers=common_pb2.LayerRange(first=layers.start, last=layers.stop),
        model_layers=FORM.model_layers,
        page_bytes=len(layers) * FORM.layer_bytes,
        info=INFO,
    )
    return (await hicache.Commit(request)).num_visible


def evictor(valkey: Valkey) -> str:
    """Return the name of the replica that evicts, empty if there is none."""
    with valkey.client() as client:
        name = client.get("cm-evictor")
    return name.decode() if isinstance(name, bytes) else ""


async def test_a_commit_at_one_is_a_hit_at_the_other(valkey: Valkey) -> None:
    """Two stages may even report to different replicas; what a namespace is comes too."""
    async with replicas(valkey, 2) as (first, second):
        assert 4 == await commit(valkey, first)
        await eventually(lambda: found(second, 4), within_s=SOON_S)
        other = chain(3, name="other")
        assert 0 == await commit(valkey, first, other, range(2))

        async def half() -> bool:
            return (await stats_of(second)).num_partial_pages == 3

        await eventually(half, within_s=SOON_S)
        assert 3 == await commit(valkey, second, other, range(2, 4))
        await eventually(lambda: found(first, 3, other), within_s=SOON_S)

        async def described() -> bool:
            return (await state_of(second)).info == INFO

        await eventually(described, within_s=SOON_S)


async def found(hicache: HiCache, num_pages: int, digests: Sequence[bytes] = DIGESTS) -> bool:
    """Whether exactly so many leading pages are found."""
    return await num_found(hicache, digests) == num_pages


async def test_what_one_deletes_is_gone_at_the_others_and_may_come_back(valkey: Valkey) -> None:
    """Nobody believes in a page before it is unlinked, and everybody does when it is new."""
    async with replicas(valkey, 2) as (first, second):
        await commit(valkey, first)
        await eventually(lambda: found(second, 4))
        gone = await second.Evict(pb.EvictRequest(selection=pb.Selection(below=DIGESTS[1])))
        assert 3 == gone.num_pages
        await eventually(lambda: found(first, 1), within_s=SOON_S)

        async def unlinked() -> bool:
            return len(valkey.page_keys()) == 1

        await eventually(unlinked)

        async def taken_again() -> bool:
            await commit(valkey, first)
            return await num_found(first) == 4

        await eventually(taken_again, within_s=5)
        await eventually(lambda: found(second, 4), within_s=SOON_S)


async def test_a_clear_and_bad_pages_are_known_to_all(valkey: Valkey) -> None:
    """What is gone for one is gone for all."""
    async with replicas(valkey, 2) as (first, second):
        await commit(valkey, first)
        await eventually(lambda: found(second, 4))
        await first.Invalidate(pb.InvalidateRequest(digests=[DIGESTS[3]]))
        await eventually(lambda: found(second, 3), within_s=SOON_S)
        await second.Clear(pb.ClearRequest())
        await eventually(lambda: found(first, 0), within_s=SOON_S)
        assert [] == valkey.page_keys()


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


async def has_pages(valkey: Valkey, num_pages: int) -> bool:
    """Whether Redis has so many pages."""
    return len(valkey.page_keys()) == num_pages


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


async def test_an_evictor_that_is_killed_is_followed(valkey: Valkey) -> None:
    """A key that ends by itself; whoever follows evicts what is too much."""
    process = hicache_process(valkey)
    try:
        await eventually(lambda: elected(valkey))
        killed = evictor(valkey)
        async with replica(valkey, max_bytes=2 * PAGE_BYTES) as hicache:
            await commit(valkey, hicache)
            await asyncio.sleep(0.3)
            assert (4, 0) == await pages_and_evictions(hicache)
            assert killed == evictor(valkey)
            process.send_signal(signal.SIGKILL)
            started_s = time.monotonic()

            async def evicted() -> bool:
                return await pages_and_evictions(hicache) == (2, 2)

            await eventually(evicted, within_s=6)
            assert time.monotonic() - started_s < 6
            assert killed != evictor(valkey)
    finally:
        process.kill()
        process.wait(timeout=10)


def hicache_process(valkey: Valkey) -> subprocess.Popen[bytes]:
    """Start a HiCache that can be killed."""
    command = [
        *(sys.executable, "-m", "hicache", "--redis-url", valkey.url),
        *("--port", "0", "--http-port", "0"),
    ]
    return subprocess.Popen(command, env={**os.environ, "PYTHONPATH": str(pathlib.Path.cwd())})


async def elected(valkey: Valkey) -> bool:
    """Whether there is an evictor."""
    return bool(evictor(valkey))


async def pages_and_evictions(hicache: HiCache) -> tuple[int, int]:
    """Count pages there and evicted."""
    stats = await stats_of(hicache)
    return stats.num_pages, stats.num_evicted_pages


async def test_an_evictor_that_stops_makes_room_at_once(valkey: Valkey) -> None:
    """A rolling update leaves no time without an evictor."""
    async with replica(valkey) as staying:
        async with replica(valkey):
            pass
        assert (await lease(staying)) == ""
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
    write(valkey, DIGESTS)
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
    """Also at a replica that started later, over a renewal, and until it is released."""
    async with replica(valkey) as first:
        await commit(valkey, first)
        lease_id = await lease(first, ttl_ms=2000)
        ends_s = time.monotonic() + 2
        async with replica(valkey) as second:
            evict = pb.EvictRequest(selection=ALL)
            await eventually(lambda: has_leases(second, 1), within_s=SOON_S)
            assert (0, 4) == numbers(await second.Evict(evict))
            renew = pb.RenewLeasesRequest(lease_ids=[lease_id], lease_ttl_ms=3500)
            assert [] == list((await second.RenewLeases(renew)).ended_ids)
            await asyncio.sleep(ends_s + 0.5 - time.monotonic())
            assert (1, 1) == tuple([await num_leases(hicache) for hicache in (first, second)])
            await eventually(lambda: has_leases(first, 0), within_s=4)
            await eventually(lambda: has_leases(second, 0), within_s=SOON_S)
            lease_id = await lease(second)
            await eventually(lambda: has_leases(first, 1), within_s=SOON_S)
            assert (0, 4) == numbers(await first.Evict(evict))
            await second.ReleaseLease(pb.ReleaseLeaseRequest(lease_id=lease_id))
            await eventually(lambda: has_leases(first, 0), within_s=SOON_S)
            assert (4, 0) == numbers(await first.Evict(evict))


async def num_leases(hicache: HiCache) -> int:
    """Count live leases."""
    return (await stats_of(hicache)).num_leases


async def has_leases(hicache: HiCache, expected: int) -> bool:
    """Whether so many leases are live."""
    return await num_leases(hicache) == expected


def numbers(reply: pb.EvictResponse) -> tuple[int, int]:
    """Return pages that went and pages that stay."""
    return reply.num_pages, reply.num_held_pages


async def test_a_lease_given_in_the_moment_of_an_eviction_saves_the_pages(valkey: Valkey) -> None:
    """The victims are unlinked 2 s later, unless a lease became known meanwhile."""
    async with replicas(valkey, 2) as (first, second):
        await commit(valkey, first)
        await eventually(lambda: found(second, 4))
        given, gone = await asyncio.gather(
            lease(second), first.Evict(pb.EvictRequest(selection=ALL))
        )
        assert given
        assert 4 == gone.num_pages
        await asyncio.sleep(3)
        assert 4 == len(valkey.page_keys())
        await second.ReleaseLease(pb.ReleaseLeaseRequest(lease_id=given))
        await eventually(lambda: has_pages(valkey, 0))


async def test_pins_and_quotas_are_seen_within_a_second(valkey: Valkey) -> None:
    """An admin need not know which replica he talks to."""
    async with replicas(valkey, 2) as (first, second):
        await commit(valkey, first)
        await eventually(lambda: found(second, 4))
        await first.Pin(pb.PinRequest(selection=pb.Selection(below=DIGESTS[2])))
        await eventually(lambda: has_kept(second, 2, 0), within_s=SOON_S)
        quota = pb.SetQuotaRequest(namespace=NAMESPACE, max_bytes=9 * PAGE_BYTES)
        await second.SetQuota(quota)
        await eventually(lambda: has_kept(first, 2, 9 * PAGE_BYTES), within_s=SOON_S)
        await second.Unpin(pb.UnpinRequest(selection=ALL))
        await eventually(lambda: has_kept(first, 0, 9 * PAGE_BYTES), within_s=SOON_S)
        await second.SetQuota(pb.SetQuotaRequest(namespace=NAMESPACE, max_bytes=3 * PAGE_BYTES))
        await eventually(lambda: found(first, 3), within_s=SOON_S + 1)
        await eventually(lambda: found(second, 3), within_s=SOON_S)


async def has_kept(hicache: HiCache, num_pinned_pages: int, quota_bytes: int) -> bool:
    """Whether pins and quota are these."""
    state = await state_of(hicache)
    return (state.num_pinned_pages, state.quota_bytes) == (num_pinned_pages, quota_bytes)


async def test_watching_one_tells_of_all(valkey: Valkey) -> None:
    """Each change once, whichever replica made it."""
    heard: list[pb.WatchResponse] = []

    async def listen(hicache: HiCache) -> None:
        async for change in hicache.Watch(pb.WatchRequest()):
            heard.append(change)  # noqa: PERF401 - looked at meanwhile

    async with replicas(valkey, 2) as (first, second), asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(listen(second))
        await asyncio.sleep(0.1)
        await commit(valkey, first)
        await first.Match(pb.MatchRequest(digests=(*DIGESTS, bytes(32))))
        await first.Match(pb.MatchRequest(digests=[bytes(32)]))
        await first.Pin(pb.PinRequest(selection=ALL, ttl_ms=300))

        async def heard_of_pin() -> bool:
            return any(change.kind == pb.CHANGE_KIND_UNPINNED for change in heard)

        await eventually(heard_of_pin)
        await first.SetQuota(pb.SetQuotaRequest(namespace=NAMESPACE, max_bytes=4 * PAGE_BYTES))
        await first.Evict(pb.EvictRequest(selection=pb.Selection(below=DIGESTS[3])))
        await first.Invalidate(pb.InvalidateRequest(digests=[DIGESTS[2]]))
        await first.Clear(pb.ClearRequest())

        async def heard_of_clear() -> bool:
            return any(change.kind == pb.CHANGE_KIND_CLEARED for change in heard)

        await eventually(heard_of_clear)
        listening.cancel()
    told = [(change.kind, change.num_pages, change.num_bytes, change.digest) for change in heard]
    assert told == [
        (pb.CHANGE_KIND_COMMITTED, 4, 4 * PAGE_BYTES, DIGESTS[0]),
        (pb.CHANGE_KIND_MATCHED, 4, 4 * PAGE_BYTES, DIGESTS[0]),
        (pb.CHANGE_KIND_MATCHED, 0, 0, b""),
        (pb.CHANGE_KIND_PINNED, 4, 4 * PAGE_BYTES, DIGESTS[0]),
        (pb.CHANGE_KIND_UNPINNED, 4, 4 * PAGE_BYTES, DIGESTS[0]),
        (pb.CHANGE_KIND_QUOTA_SET, 0, 4 * PAGE_BYTES, b""),
        (pb.CHANGE_KIND_DELETED, 1, PAGE_BYTES, DIGESTS[3]),
        (pb.CHANGE_KIND_INVALIDATED, 1, PAGE_BYTES, DIGESTS[2]),
        (pb.CHANGE_KIND_CLEARED, heard[-1].num_pages, heard[-1].num_bytes, b""),
    ]
    assert [4, 5, 1] == [heard[0].num_pages, *(change.num_queried_pages for change in heard[1:3])]


async def test_a_flush_is_seen_though_others_write_on(valkey: Valkey) -> None:
    """Redis need not be empty to have lost all: the mark is gone, or another one."""
    async with replicas(valkey, 2) as (first, second):
        await commit(valkey, first)
        await eventually(lambda: found(second, 4))
        with valkey.client() as client, client.pipeline() as pipeline:
            pipeline.flushall().set("of somebody else", b"x").execute()
        await eventually(lambda: found(first, 0))
        await eventually(lambda: found(second, 0))
        await eventually(lambda: is_ready(first))
        await eventually(lambda: is_ready(second))
        assert 4 == await commit(valkey, second)
        await eventually(lambda: found(first, 4), within_s=SOON_S)


async def test_a_gap_is_closed_by_a_scan(valkey: Valkey) -> None:
    """Whoever was too slow finds out by itself, and is told again what comes later."""
    async with replicas(valkey, 2) as (first, second):
        before = REGISTRY.get_sample_value("chunkmesh_hicache_event_gaps_total") or 0
        await asyncio.sleep(0.2)
        write(valkey, DIGESTS)
        store = KvStore(valkey.url)
        with valkey.client() as client:
            client.xtrim("cm-events", 0, approximate=False)
        stream.append(store, b"a third", [b""])
        store.close()
        for hicache in (first, second):
            await eventually(lambda hicache=hicache: found(hicache, 4))  # type: ignore[misc]
        assert before + 2 == REGISTRY.get_sample_value("chunkmesh_hicache_event_gaps_total")
        other = chain(2, name="other")
        await commit(valkey, first, other)
        await eventually(lambda: found(second, 2, other))


async def test_nonsense_in_the_stream_is_counted_and_passed_over(valkey: Valkey) -> None:
    """Whoever may write to Redis may not stop HiCache by it."""
    async with replicas(valkey, 2) as (first, second):
        name = "chunkmesh_hicache_events_ignored_total"
        before = REGISTRY.get_sample_value(name) or 0
        with valkey.client() as client:
            client.xadd("cm-events", {"x": "y"})
            client.xadd("cm-events", {"v": "2", "r": "other", "e": "later"})
            client.xadd("cm-events", {"v": "1", "r": "\xff", "e": b"\x01\xff\xff\xff\xff"})
        await commit(valkey, first)
        await eventually(lambda: found(second, 4), within_s=SOON_S)
        assert before + 6 == REGISTRY.get_sample_value(name)


def test_the_stream_is_capped(valkey: Valkey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody's slowness makes Redis grow."""
    monkeypatch.setattr(stream, "MAX_ENTRIES", 300)
    store = KvStore(valkey.url)
    place = stream.join(store, b"a", b"first")
    stream.append(store, b"a", [b"piece"] * 100)
    entries = stream.read(store, place)
    assert entries is not None
    assert [b"piece"] * stream.READ_ENTRIES == [entry.events for entry in entries]
    stream.append(store, b"a", [b"piece"] * 2000)
    with valkey.client() as client:
        assert 300 <= client.xlen("cm-events") <= 400
    assert stream.read(store, place) is None
    store.close()
