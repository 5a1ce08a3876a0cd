"""What the scheduler tells in /metrics of each route and its stages, and of microbatches.

The label route is a small number that a route has while it stands; the series of one that is gone
are dropped. One set a process.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from prometheus_client import Gauge, Histogram

from scheduler.request_metrics import LATENCY_BUCKETS_S
from scheduler.route_numbers import RouteNumbers
from scheduler.route_series import RouteMetric, Series, StageMetric, route_series
from scheduler.snapshot import RouteCounts
from scheduler.timeline import MeasuredTime

_EPOCH = Gauge(
    "chunkmesh_plan_epoch",
    "Epoch of a route: its scheduler's term times 2^32, and a count.",
    ["route"],
)
_IN_FLIGHT = Gauge(
    "chunkmesh_microbatches_in_flight",
    "Microbatches that some stage has not acknowledged.",
    ["route"],
)
_BUBBLE = Gauge(
    "chunkmesh_bubble_ratio",
    "Share of the time in which a stage waited while microbatches were in flight, lately.",
    ["route", "stage"],
)
_REFITS = Gauge(
    "chunkmesh_latency_refits",
    "Times that a stage's latency was replaced since the route stands.",
    ["route", "stage"],
)
_KV_USAGE = Gauge(
    "chunkmesh_kv_cache_usage_ratio",
    "Pages in use over those that the stage has room for; cached pages are free.",
    ["route", "stage"],
)
_LOAD_BANDWIDTH = Gauge(
    "chunkmesh_load_bytes_per_second",
    "What a stage reads from Redis in loads, the time until the first byte included; lately.",
    ["route", "stage"],
)
_HOST_BANDWIDTH = Gauge(
    "chunkmesh_host_bytes_per_second",
    "What a stage copies from host memory to its device in loads; lately.",
    ["route", "stage"],
)
_SECONDS = Histogram(
    "chunkmesh_microbatch_seconds",
    "Compute time of a microbatch on a stage: measured, and predicted where a latency is known.",
    ["stage", "kind"],
    buckets=LATENCY_BUCKETS_S,
)
_PREDICTION = Histogram(
    "chunkmesh_predicted_over_measured_ratio",
    "Predicted over measured compute time of a microbatch.",
    ["stage"],
    buckets=(0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4, 2.0, 4.0),
)
_GAUGES: dict[RouteMetric | StageMetric, Gauge] = {
    "epoch": _EPOCH,
    "in_flight": _IN_FLIGHT,
    "bubble_ratio": _BUBBLE,
    "refits": _REFITS,
    "kv_usage_ratio": _KV_USAGE,
    "load_bytes_per_s": _LOAD_BANDWIDTH,
    "host_bytes_per_s": _HOST_BANDWIDTH,
}


class PipelineReport:
    """Brings the series of routes up to those that stand."""

    def __init__(self) -> None:
        """Begin without routes."""
        self._numbers = RouteNumbers()
        self._shown: dict[Series, float] = {}

    def show(
        self, routes: Sequence[RouteCounts], capacity_pages: Mapping[int, Sequence[int]]
    ) -> None:
        """Show the routes that stand; capacity_pages is by epoch, for each stage."""
        numbers = self._numbers.renew([route.epoch for route in routes])
        series = route_series(routes, numbers, capacity_pages)
        for gone in self._shown.keys() - series.keys():
            _GAUGES[gone.metric].remove(*_labels(gone))
        for shown, value in series.items():
            if self._shown.get(shown) != value:
                _GAUGES[shown.metric].labels(*_labels(shown)).set(value)
        self._shown = series


def observe_microbatch(stage: int, time: MeasuredTime) -> None:
    """Count the time of one microbatch on a stage."""
    measured, predicted, ratio = _histograms(stage)
    measured.observe(time.measured_s)
    if time.predicted_s is not None:
        predicted.observe(time.predicted_s)
        ratio.observe(time.predicted_s / time.measured_s)


@functools.cache
def _histograms(stage: int) -> tuple[Histogram, Histogram, Histogram]:
    """Return those of a stage: measured, predicted, and what is between both."""
    measured, predicted = _SECONDS.labels(stage, "measured"), _SECONDS.labels(stage, "predicted")
    return measured, predicted, _PREDICTION.labels(stage)


def _labels(series: Series) -> tuple[int, ...]:
    return (series.route,) if series.stage is None else (series.route, series.stage)
