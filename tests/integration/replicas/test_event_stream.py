"""What replicas tell each other may be lost, cut off or nonsense."""

from __future__ import annotations

import pytest
from prometheus_client import REGISTRY

from chunkmesh.kv_store import KvStore
from hicache.replication import stream
from tests.eventually import eventually
from tests.page_samples import chain
from tests.replicas import (
    DIGESTS,
    SOON_S,
    commit,
    found,
    is_ready,
    replicas,
    write,
)
from tests.valkey import Valkey


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
        write([valkey], DIGESTS)
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
        await eventually(lambda: before + 6 == REGISTRY.get_sample_value(name))


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
