"""The routes that stand, as the shell knows them, and what is recorded of each."""

from __future__ import annotations

import dataclasses

import structlog

from scheduler import route_metrics
from scheduler.decisions import RouteStands
from scheduler.events import RouteFormed
from scheduler.fit_report import tell_fits
from scheduler.pipeline_time import LinkTime
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

    def add(self, route: LiveRoute) -> None:
        """Take in a route that stands now."""
        num_stages, num_pages = len(route.workers), route.stands.num_pages
        _log.info("route stands", epoch=route.epoch, stages=num_stages, pages=num_pages)
        self.by_epoch[route.epoch] = route
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

    def _show_fits(self) -> None:
        """Bring the metrics of latencies up to the routes that stand."""
        route_metrics.show_fits([route.fits for route in self.by_epoch.values()])
