"""What hicache-server tells in /metrics of its index and of Redis. One set a process."""

from __future__ import annotations

from prometheus_client import Counter, Gauge

from hicache.cache import PrefixCache

_REDIS_UP = Gauge("chunkmesh_redis_up", "Whether Redis answers hicache-server, 1 or 0.")
_PAGES = Gauge(
    "chunkmesh_hicache_pages",
    "Pages in the index: complete, stored for all layers, or partial, for some of them.",
    ["state"],
)
_BYTES = Gauge("chunkmesh_hicache_bytes", "Bytes of all pages in the index.")
_BUDGET = Gauge("chunkmesh_hicache_budget_bytes", "Most bytes of all pages; 0 for no limit.")
_LEASES = Gauge("chunkmesh_hicache_leases", "Leases that hold pages now.")
_QUERIED = Counter("chunkmesh_hicache_queried_pages", "Pages that Match was asked for.")
_HIT = Counter("chunkmesh_hicache_hit_pages", "Pages that Match was asked for and found.")
_EVICTED = Counter(
    "chunkmesh_hicache_evicted_pages", "Pages that went to keep the budget or a quota."
)


class IndexReport:
    """Brings the metrics up to what a cache has counted."""

    def __init__(self) -> None:
        """Begin with a cache that has counted nothing."""
        self._queried_pages = self._hit_pages = self._evicted_pages = 0

    def show(self, cache: PrefixCache, *, is_redis_up: bool) -> None:
        """Tell what there is, and what was counted since the last time."""
        _REDIS_UP.set(is_redis_up)
        _PAGES.labels("complete").set(cache.num_pages)
        _PAGES.labels("partial").set(cache.num_partial_pages)
        _BYTES.set(cache.num_bytes)
        _BUDGET.set(cache.budget_bytes)
        _LEASES.set(cache.num_leases)
        counted = cache.counters
        _QUERIED.inc(counted.queried_pages - self._queried_pages)
        _HIT.inc(counted.hit_pages - self._hit_pages)
        _EVICTED.inc(cache.num_evicted_pages - self._evicted_pages)
        self._queried_pages, self._hit_pages = counted.queried_pages, counted.hit_pages
        self._evicted_pages = cache.num_evicted_pages
