"""What the cache was good for, as operators see it."""

from __future__ import annotations

import dataclasses

from prometheus_client import REGISTRY

from scheduler.cache_counts import CacheCounts
from scheduler.cache_report import CacheReport, cache_info
from scheduler.snapshot import Snapshot


def _snapshot(cache: CacheCounts) -> Snapshot:
    """Return the state of a mesh with 10 pages, of which 2 are in use and 3 cached."""
    return Snapshot(
        epoch=1,
        num_waiting=0,
        num_preemptions=0,
        cache=cache,
        chunk_strategy="fixed",
        num_pages=10,
        num_free_pages=8,
        num_cached_pages=3,
        load_bytes_per_s=(5e6, 0.0),
    )


def _value(name: str, **labels: str) -> float:
    """Read a metric."""
    return REGISTRY.get_sample_value(f"chunkmesh_{name}", labels) or 0.0


def test_counters_grow_by_what_was_counted_since() -> None:
    """They belong to the process, and are shown ten times a second."""
    before = {
        tier: _value("prefix_cache_hit_tokens_total", tier=tier)
        for tier in ("device", "host", "redis")
    }
    loads = _value("loads_total", outcome="partial")
    evicted = _value("device_evicted_pages_total")
    report = CacheReport()
    cache = CacheCounts(device_hit_tokens=32, host_hit_tokens=16, redis_hit_tokens=64)
    cache.loads["partial"] = 2
    report.show(_snapshot(cache.copy()))
    cache.device_hit_tokens += 16
    cache.evicted_pages += 7
    for _ in range(2):
        report.show(_snapshot(cache.copy()))
    after = {
        tier: _value("prefix_cache_hit_tokens_total", tier=tier) - before[tier] for tier in before
    }
    assert after == {"device": 48, "host": 16, "redis": 64}
    assert _value("loads_total", outcome="partial") == loads + 2
    assert _value("device_evicted_pages_total") == evicted + 7


def test_pages_are_told_by_state() -> None:
    """Cached pages are free for whoever needs them, and yet not empty."""
    CacheReport().show(_snapshot(CacheCounts()))
    states = [_value("device_pages", state=state) for state in ("in_use", "cached", "free")]
    assert states == [2, 3, 5]


def test_server_info_has_all_counts() -> None:
    """Each under its own name."""
    cache = CacheCounts(device_hit_tokens=1, host_hit_tokens=2, redis_hit_tokens=3)
    cache.evicted_pages, cache.timed_out_loads = 4, 5
    cache.loads = {"complete": 6, "partial": 7, "empty": 8, "dropped": 9, "recomputed": 10}
    info = cache_info(_snapshot(cache))
    assert info.num_cached_pages == 3
    assert list(info.load_bytes_per_s) == [5e6, 0.0]
    assert [
        info.device_hit_tokens,
        info.host_hit_tokens,
        info.redis_hit_tokens,
        info.num_evicted_pages,
        info.num_loads_timed_out,
        info.num_loads_complete,
        info.num_loads_partial,
        info.num_loads_empty,
        info.num_loads_dropped,
        info.num_matches_recomputed,
    ] == list(range(1, 11))


def test_host_memory_is_told_beside_the_devices() -> None:
    """Its pages by state, what it had no room for, and how fast it is."""
    names = ("host_evicted_pages_total", "host_dropped_pages_total", "unwritten_pages_total")
    before = [_value(name) for name in names]
    cache = CacheCounts(host_evicted_pages=1, host_dropped_pages=2, unwritten_pages=3)
    now = dataclasses.replace(
        _snapshot(cache),
        num_host_pages=20,
        num_host_cached_pages=12,
        num_host_held_pages=5,
        host_bytes_per_s=(2e9, 0.0),
    )
    CacheReport().show(now)
    states = [_value("host_pages", state=state) for state in ("in_use", "cached", "free")]
    assert states == [5, 7, 8]
    assert [_value(name) - old for name, old in zip(names, before, strict=True)] == [1, 2, 3]
    info = cache_info(now)
    assert (info.num_host_pages, info.num_host_cached_pages) == (20, 12)
    told = (info.num_host_evicted_pages, info.num_host_dropped_pages, info.num_unwritten_pages)
    assert told == (1, 2, 3)
    assert list(info.host_bytes_per_s) == [2e9, 0.0]
