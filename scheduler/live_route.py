"""The routes that stand, as the shell knows them, and what is recorded of each."""

from __future__ import annotations

import dataclasses

import structlog

from chunkmesh.layers import LayerRange
from chunkmesh.v1 import stage_pb2 as pb
from scheduler import codec, route_metrics
from scheduler.decisions import RouteStands
from scheduler.events import RouteFormed
from scheduler.fit_report import tell_fits
from scheduler.pipeline_metrics import observe_microbatch
from scheduler.pipeline_time import LinkTime
from scheduler.registry import Registry
from scheduler.stage_fit import StageFit, pipeline_latency
from scheduler.timeline import Timeline
from scheduler.worker_hello import WorkerHello

_log = structlog.get_logger(__name__)
_MAX_TIMELINE = 4096
"""Microbatches that are kept of each request's timeline."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LiveRoute:
    """Its workers and what is known of their latency, both by stage."""

    stands: RouteStands
    workers: tuple[WorkerHello, ...]
    fits: tuple[StageFit, ...]
    since_s: float
    """When it began to stand, on the scheduler's monotonic clock."""

    @property
    def epoch(self) -> int:
        """Its number, unique over all routes."""
        return self.stands.epoch

    def formed(self, page_tokens: int) -> RouteFormed:
        """Return what the engine has to know."""
        stands = self.stands
        return RouteFormed(
            epoch=stands.epoch,
            num_stages=len(self.workers),
            num_pages=stands.num_pages,
            latency=pipeline_latency(self.fits),
            page_bytes=tuple(each.kv_bytes_per_token * page_tokens for each in self.workers),
            num_host_pages=stands.num_host_pages,
            pool_ids=stands.pool_ids,
            chunk_alignment_tokens=max(each.chunk_alignment_tokens for each in self.workers),
            link=LinkTime(latency_ms=stands.link_latency_ms),
            is_on_gpus=all(each.device.startswith("cuda") for each in self.workers),
            fingerprint=stands.fingerprint,
        )

    def capacity_pages(self, page_tokens: int) -> tuple[int, ...]:
        """Return how many pages each stage has room for."""
        return tuple(each.kv_capacity_tokens // page_tokens for each in self.workers)

    def stage_of(self, worker_id: str) -> int | None:
        """Return a worker's place; None if it has none here."""
        worker_ids = self.stands.worker_ids
        return worker_ids.index(worker_id) if worker_id in worker_ids else None


class LiveRoutes:
    """Owns the routes that stand and the timelines of what runs on them."""

    def __init__(self) -> None:
        """Start without routes."""
        self.timeline = Timeline(max_microbatches=_MAX_TIMELINE)
        self.by_epoch: dict[int, LiveRoute] = {}
        """The longest standing first."""
        self.layers: tuple[LayerRange, ...] = ()
        """Those of each stage, on the route that was formed last."""

    def add(self, route: LiveRoute) -> None:
        """Take in a route that stands now."""
        num_stages, num_pages = len(route.workers), route.stands.num_pages
        _log.info("route stands", epoch=route.epoch, stages=num_stages, pages=num_pages)
        self.by_epoch[route.epoch] = route
        self.layers = tuple(worker.layers for worker in route.workers)
        self.timeline.begin(route.epoch, num_stages)
        tell_fits(route.fits)
        self._show_fits()

    def remove(self, epoch: int, reason: str) -> None:
        """Drop a route that broke."""
        _log.warning("route lost", epoch=epoch, reason=reason)
        del self.by_epoch[epoch]
        self.timeline.end(epoch)
        route_metrics.count_lost_route()
        self._show_fits()

    def hear_ack(self, ack: pb.Ack, stage: int, *, heard_s: float) -> None:
        """Record when a stage of a route worked."""
        times = codec.times_from(ack)
        taken = self.timeline.acked(ack.epoch, stage, ack.seq_no, times, heard_s=heard_s)
        if taken is not None:
            observe_microbatch(stage, taken)

    def show(self, registry: Registry) -> dict[int, tuple[int, ...]]:
        """Bring metrics up to who is attached; return each stage's capacity in pages, by epoch."""
        route_metrics.show_workers(registry)
        route_metrics.show_stages(self.layers, registry)
        routes, page_tokens = self.by_epoch.items(), registry.page_tokens
        return {epoch: route.capacity_pages(page_tokens) for epoch, route in routes}

    def _show_fits(self) -> None:
        """Bring the metrics of latencies up to the routes that stand."""
        route_metrics.show_fits([route.fits for route in self.by_epoch.values()])
