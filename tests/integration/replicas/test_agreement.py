"""HiCaches over one Redis agree, whichever of them is asked."""

from __future__ import annotations

import asyncio
import contextlib
import pathlib
from collections.abc import AsyncIterator, Sequence

import pytest

from chunkmesh.kv_store import KvStore
from chunkmesh.v1 import hicache_pb2 as pb
from hicache import rebuild
from hicache.replication import stream
from hicache.replication.event_codec import encode_event
from hicache.replication.events import KeptChanged
from tests.eventually import eventually
from tests.hicache_admin import INFO
from tests.page_samples import NAMESPACE, chain
from tests.replicas import (
    ALL,
    DIGESTS,
    PAGE_BYTES,
    SOON_S,
    HiCache,
    commit,
    found,
    has_pages,
    is_ready,
    num_found,
    pages_and_evictions,
    replica,
    replicas,
    state_of,
    stats_of,
    write,
)
from tests.valkey import Valkey, running_cluster, running_valkey


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


async def test_what_was_stored_while_one_was_down_is_known_to_all(
    valkey: Valkey, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A scheduler that can reach only one of them has told nobody of its pages.

    Neither of those that it stores until it finds the one that has come back. The other one may be
    who evicts: it keeps the budget again.
    """
    monkeypatch.setattr(rebuild, "SETTLE_S", 0.5)
    first, more = chain(6, name="first"), chain(4, name="more")
    async with replica(valkey, max_bytes=8 * PAGE_BYTES) as evicting:
        await commit(valkey, evicting, DIGESTS)
        await asyncio.to_thread(write, [valkey], first)
        assert 0 == await num_found(evicting, first)
        async with replica(valkey, max_bytes=8 * PAGE_BYTES) as joining:
            await asyncio.to_thread(write, [valkey], more)
            assert 6 == await num_found(joining, first)
            await eventually(lambda: found_in_all((evicting, joining), 8))
        await eventually(lambda: has_pages(valkey, 8))
        assert (8, 6) == await pages_and_evictions(evicting)


async def found_in_all(hicaches: Sequence[HiCache], num_pages: int) -> bool:
    """Whether all know as many pages."""
    return all([(await stats_of(hicache)).num_pages == num_pages for hicache in hicaches])


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
    async with replicas(valkey, 2) as (first, second), watched(second) as heard:
        await commit(valkey, first)
        await first.Match(pb.MatchRequest(digests=(*DIGESTS, bytes(32))))
        await first.Match(pb.MatchRequest(digests=[bytes(32)]))
        await first.Pin(pb.PinRequest(selection=ALL, ttl_ms=300))

        await eventually(lambda: pb.CHANGE_KIND_UNPINNED in {change.kind for change in heard})
        await first.SetQuota(pb.SetQuotaRequest(namespace=NAMESPACE, max_bytes=4 * PAGE_BYTES))
        await first.Evict(pb.EvictRequest(selection=pb.Selection(below=DIGESTS[3])))
        await first.Invalidate(pb.InvalidateRequest(digests=[DIGESTS[2]]))
        await first.Clear(pb.ClearRequest())

        await eventually(lambda: pb.CHANGE_KIND_CLEARED in {change.kind for change in heard})
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


@contextlib.asynccontextmanager
async def watched(hicache: HiCache) -> AsyncIterator[list[pb.WatchResponse]]:
    """Watch while inside; yield what is heard from then on."""
    heard: list[pb.WatchResponse] = []

    async def listen() -> None:
        async for change in hicache.Watch(pb.WatchRequest()):
            heard.append(change)  # noqa: PERF401 - looked at meanwhile

    async with asyncio.TaskGroup() as tasks:
        listening = tasks.create_task(listen())
        await _hears_all(hicache, heard)
        heard.clear()
        yield heard
        listening.cancel()


async def _hears_all(hicache: HiCache, heard: list[pb.WatchResponse]) -> None:
    """Wait until a watch that has just begun hears of every change and of nothing before."""

    async def match(num_digests: int) -> bool:
        await hicache.Match(pb.MatchRequest(digests=[bytes(32)] * num_digests))
        return bool(heard)

    await eventually(lambda: match(1))
    await match(2)  # others like the first may still be on their way
    await eventually(lambda: heard[-1].num_queried_pages == 2)


async def test_a_pin_that_is_over_is_told_of_once(valkey: Valkey) -> None:
    """Its end is read from Redis again at each scan, until somebody clears it away there."""
    async with replicas(valkey, 2) as (first, second), watched(second) as heard:
        await commit(valkey, first)
        await first.Pin(pb.PinRequest(selection=ALL, ttl_ms=100))
        await eventually(lambda: pb.CHANGE_KIND_UNPINNED in {change.kind for change in heard})
        store = KvStore(valkey.url)
        stream.append(store, b"a third", [encode_event(KeptChanged())])
        store.close()
        with valkey.client() as client:
            await eventually(lambda: client.hlen("cm-pins") == 0)
        await second.Match(pb.MatchRequest(digests=[bytes(32)]))
        await eventually(lambda: heard[-1].kind == pb.CHANGE_KIND_MATCHED)
    assert [
        pb.CHANGE_KIND_COMMITTED,
        pb.CHANGE_KIND_PINNED,
        pb.CHANGE_KIND_UNPINNED,
        pb.CHANGE_KIND_MATCHED,
    ] == [change.kind for change in heard]


@pytest.mark.parametrize("is_cluster", [False, True], ids=["shards", "cluster"])
async def test_several_servers_and_one_of_them_flushed(
    tmp_path: pathlib.Path, is_cluster: bool
) -> None:
    """Wherever the stream lies, replicas agree, and see when a part of the pages is gone."""
    with contextlib.ExitStack() as stack:
        if is_cluster:
            servers = stack.enter_context(running_cluster(tmp_path, 3))
        else:
            folders = [tmp_path / str(index) for index in range(3)]
            for folder in folders:
                folder.mkdir()
            servers = tuple(stack.enter_context(running_valkey(folder)) for folder in folders)
        digests = chain(30)
        async with replica(*servers) as first, replica(*servers) as second:
            await commit(servers, first, digests)
            await eventually(lambda: found(second, 30, digests), within_s=SOON_S)
            assert all(server.page_keys() for server in servers)
            with servers[2].client() as client:
                client.flushall()

            async def partly_gone() -> bool:
                states = [await num_found(each, digests) for each in (first, second)]
                return max(states) < 30 and await is_ready(first) and await is_ready(second)

            await eventually(partly_gone)
            assert await num_found(first, digests) == await num_found(second, digests)
            await commit(servers, second, digests)

            async def whole_again() -> bool:
                return await found(first, 30, digests) and await found(second, 30, digests)

            await eventually(whole_again)
