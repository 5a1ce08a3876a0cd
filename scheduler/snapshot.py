"""The state of the engine in numbers, for GetServerInfo and metrics. Plain values."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler.cache_counts import CacheCounts
from scheduler.engine_config import ChunkStrategyName
from scheduler.latency_model import PipelineLatency
from scheduler.recoveries import RecoveryCounts
from scheduler.route import Route


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RouteCounts:
    """What one of the routes does."""

    epoch: int
    num_free_pages: int
    num_waiting: int
    num_running: int
    num_in_flight: int
    num_pages: int
    bubble_ratios: tuple[float, ...]
    """Share of the time with work in which each stage waited lately; empty before any."""
    load_bytes_per_s: tuple[float, ...]
    """What each stage has measured of Redis; 0 before its first load."""
    host_bytes_per_s: tuple[float, ...]
    """What each stage has measured of copies from host memory; 0 before the first."""
    latency: PipelineLatency | None
    """What its chunks are planned with now, refits included."""
    num_refits: tuple[int, ...]

    @classmethod
    def of(cls, route: Route) -> RouteCounts:
        """Count what a route does."""
        return cls(
            epoch=route.epoch,
            num_free_pages=route.pages.num_free,
            num_waiting=len(route.queue),
            num_running=route.rows.num_taken,
            num_in_flight=route.microbatches.pipeline.num_in_flight,
            num_pages=route.pages.num_pages,
            bubble_ratios=route.pace.use.bubble_ratios,
            load_bytes_per_s=route.prefixes.rates.redis.bytes_per_s,
            host_bytes_per_s=route.prefixes.rates.host.bytes_per_s,
            latency=route.pace.latency,
            num_refits=tuple(route.pace.num_refits),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Counts for a person; those with a default are of the routes and tell nothing without one."""

    epoch: int
    """The highest of a route that stood; 0 before the first."""
    num_waiting: int
    """Requests, and outputs that were preempted or lost their route."""
    num_parked: int = 0
    """Those of them for which no route stands."""
    num_preemptions: int
    """Outputs that gave their pages to others since the start, whatever the route."""
    cache: CacheCounts
    """Since the start, whatever the route; a copy."""
    recoveries: RecoveryCounts = dataclasses.field(default_factory=RecoveryCounts)
    """Likewise."""
    chunk_strategy: ChunkStrategyName
    """In use; without a route the one asked for."""
    chunk_strategy_reason: str = ""
    """Why it is not the one asked for, in words; empty if it is."""
    chunk_alignment_tokens: int = 0
    """What optimal chunks are multiples of when nothing is beside; 0 with another strategy."""
    routes: tuple[RouteCounts, ...] = ()
    """The longest standing first."""
    num_route_pages: int = 0
    """Of the largest route, or that of the last one: what one request may fill at most."""
    num_pages: int = 0
    """Of all routes, as all numbers of pages, outputs, microbatches, loads and stores."""
    num_free_pages: int = 0
    """That can be handed out now, cached ones included."""
    num_cached_pages: int = 0
    """Free pages that keep their contents until they are needed."""
    num_host_pages: int = 0
    num_host_cached_pages: int = 0
    """Host pages with contents."""
    num_host_held_pages: int = 0
    """Those that cannot be evicted now."""
    num_running: int = 0
    """Outputs that have a row; until a prompt's first tokens are there, all of its request."""
    num_in_flight: int = 0
    """Microbatches that some stage has not acknowledged."""
    load_bytes_per_s: tuple[float, ...] = ()
    """What each stage of the oldest route has measured of Redis; 0 before its first load."""
    host_bytes_per_s: tuple[float, ...] = ()
    """What each stage has measured of copies from host memory; 0 before the first."""
    num_loads: int = 0
    num_stores: int = 0
    num_unwritten_pages: int = 0
    """That stores under way, or still to come while the scheduler drains, will write."""
    latency: PipelineLatency | None = None
    """What chunks are planned with now, refits included."""
    num_refits: tuple[int, ...] = ()
    """How often each stage's latency was replaced."""


def snapshot_of(routes: Sequence[Route], engine: Snapshot) -> Snapshot:
    """Add to what an engine tells what its routes do: their sums, and of the first its plan."""
    if not routes:
        return engine
    return dataclasses.replace(
        _of_first(routes[0], engine),
        routes=tuple(map(RouteCounts.of, routes)),
        num_pages=sum(route.pages.num_pages for route in routes),
        num_free_pages=sum(route.pages.num_free for route in routes),
        num_cached_pages=sum(route.pages.cached.num_idle for route in routes),
        num_running=sum(route.rows.num_taken for route in routes),
        num_in_flight=sum(route.microbatches.pipeline.num_in_flight for route in routes),
        num_host_pages=sum(route.tiers.host.num_pages for route in routes),
        num_host_cached_pages=sum(route.tiers.host.num_cached for route in routes),
        num_host_held_pages=sum(route.tiers.host.num_held for route in routes),
        num_loads=sum(len(route.loads) for route in routes),
        num_stores=sum(len(route.stores) for route in routes),
        num_unwritten_pages=sum(route.stores.num_unwritten for route in routes),
    )


def _of_first(route: Route, engine: Snapshot) -> Snapshot:
    """Add what the oldest route plans and has measured."""
    return dataclasses.replace(
        engine,
        chunk_strategy=route.microbatches.choice.strategy,
        chunk_strategy_reason=route.microbatches.choice.reason,
        chunk_alignment_tokens=route.microbatches.chunk_alignment_tokens,
        load_bytes_per_s=route.prefixes.rates.redis.bytes_per_s,
        host_bytes_per_s=route.prefixes.rates.host.bytes_per_s,
        latency=route.pace.latency,
        num_refits=tuple(route.pace.num_refits),
    )
