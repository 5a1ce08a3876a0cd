"""Tells what the tiers of the prefix cache are good for: metrics and GetServerInfo."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from chunkmesh.v1 import generation_pb2 as pb
from scheduler.cache_counts import CacheCounts
from scheduler.snapshot import Snapshot

_QUERIES = Counter(
    "chunkmesh_prefix_cache_query_tokens",
    "Tokens of outputs that began that were looked for: all known ones on the devices, what these"
    " lack in host memory, if there is any, and what both lack in Redis, if HiCache answers.",
    ["tier"],
)
_HITS = Counter(
    "chunkmesh_prefix_cache_hit_tokens",
    "Tokens that were not computed, by where they were found: on the devices, in the stages' host"
    " memory or in Redis.",
    ["tier"],
)
_EVICTED_PAGES = Counter(
    "chunkmesh_device_evicted_pages", "Cached pages on the devices that made room for others."
)
_HOST_EVICTED_PAGES = Counter(
    "chunkmesh_host_evicted_pages", "Pages in host memory that made room for others."
)
_HOST_DROPPED_PAGES = Counter(
    "chunkmesh_host_dropped_pages",
    "Full pages that were not copied to host memory, because all there was in use.",
)
_UNWRITTEN_PAGES = Counter(
    "chunkmesh_unwritten_pages",
    "Pages that were to be written back and were not, because too many stores were under way.",
)
_LOADS = Counter(
    "chunkmesh_loads",
    "Matches of stored pages behind those on the devices, by what became of them.",
    ["outcome"],
)
_TIMED_OUT = Counter(
    "chunkmesh_loads_timed_out",
    "Loads that ended at their time limit, or without the answer of a stage.",
)
_PAGES = Gauge(
    "chunkmesh_device_pages",
    "Pages of all routes: in_use, cached (free, with contents that a request may find) and free.",
    ["state"],
)
_HOST_PAGES = Gauge(
    "chunkmesh_host_pages",
    "Pages in host memory: in_use (cannot be evicted), cached (with contents) and free.",
    ["state"],
)


class CacheReport:
    """Brings the metrics up to what an engine has counted."""

    def __init__(self) -> None:
        """Begin with an engine that has counted nothing."""
        self._told = CacheCounts()

    def show(self, now: Snapshot) -> None:
        """Tell what has changed."""
        told, cache = self._told, now.cache
        self._told = cache
        for counter, tier, count, before in (
            (_QUERIES, "device", cache.device_query_tokens, told.device_query_tokens),
            (_QUERIES, "host", cache.host_query_tokens, told.host_query_tokens),
            (_QUERIES, "redis", cache.redis_query_tokens, told.redis_query_tokens),
            (_HITS, "device", cache.device_hit_tokens, told.device_hit_tokens),
            (_HITS, "host", cache.host_hit_tokens, told.host_hit_tokens),
            (_HITS, "redis", cache.redis_hit_tokens, told.redis_hit_tokens),
        ):
            counter.labels(tier).inc(count - before)
        _EVICTED_PAGES.inc(cache.evicted_pages - told.evicted_pages)
        _HOST_EVICTED_PAGES.inc(cache.host_evicted_pages - told.host_evicted_pages)
        _HOST_DROPPED_PAGES.inc(cache.host_dropped_pages - told.host_dropped_pages)
        _UNWRITTEN_PAGES.inc(cache.unwritten_pages - told.unwritten_pages)
        _TIMED_OUT.inc(cache.timed_out_loads - told.timed_out_loads)
        for outcome, count in cache.loads.items():
            _LOADS.labels(outcome).inc(count - told.loads[outcome])
        _PAGES.labels("in_use").set(now.num_pages - now.num_free_pages)
        _PAGES.labels("cached").set(now.num_cached_pages)
        _PAGES.labels("free").set(now.num_free_pages - now.num_cached_pages)
        num_cached = now.num_host_cached_pages - now.num_host_held_pages
        _HOST_PAGES.labels("in_use").set(now.num_host_held_pages)
        _HOST_PAGES.labels("cached").set(num_cached)
        _HOST_PAGES.labels("free").set(now.num_host_pages - now.num_host_cached_pages)


def cache_info(now: Snapshot) -> pb.CacheInfo:
    """Describe what prompts did not have to compute."""
    cache = now.cache
    return pb.CacheInfo(
        num_cached_pages=now.num_cached_pages,
        device_hit_tokens=cache.device_hit_tokens,
        host_hit_tokens=cache.host_hit_tokens,
        redis_hit_tokens=cache.redis_hit_tokens,
        num_evicted_pages=cache.evicted_pages,
        load_bytes_per_s=now.load_bytes_per_s,
        num_loads_complete=cache.loads["complete"],
        num_loads_partial=cache.loads["partial"],
        num_loads_empty=cache.loads["empty"],
        num_loads_dropped=cache.loads["dropped"],
        num_matches_recomputed=cache.loads["recomputed"],
        num_loads_timed_out=cache.timed_out_loads,
        num_host_pages=now.num_host_pages,
        num_host_cached_pages=now.num_host_cached_pages,
        num_host_evicted_pages=cache.host_evicted_pages,
        num_host_dropped_pages=cache.host_dropped_pages,
        num_unwritten_pages=cache.unwritten_pages,
        host_bytes_per_s=now.host_bytes_per_s,
    )
