"""Which series of metrics there are of the routes that stand, and their values. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Literal, NamedTuple

from scheduler.snapshot import RouteCounts

RouteMetric = Literal["epoch", "in_flight"]
StageMetric = Literal[
    "bubble_ratio", "refits", "kv_usage_ratio", "load_bytes_per_s", "host_bytes_per_s"
]


class Series(NamedTuple):
    """A metric with its labels."""

    metric: RouteMetric | StageMetric
    route: int
    stage: int | None = None
    """None if the metric is of the whole route."""


def route_series(
    routes: Sequence[RouteCounts],
    numbers: Mapping[int, int],
    capacity_pages: Mapping[int, Sequence[int]],
) -> dict[Series, float]:
    """Return the value of each series; the others are by epoch, capacity by stage, too."""
    values: dict[Series, float] = {}
    for route in routes:
        number = numbers[route.epoch]
        values[Series("epoch", number)] = route.epoch
        values[Series("in_flight", number)] = route.num_in_flight
        for metric, stages in _by_stage(route, capacity_pages.get(route.epoch, ())):
            for stage, value in enumerate(stages):
                values[Series(metric, number, stage)] = value
    return values


def _by_stage(
    route: RouteCounts, capacity_pages: Sequence[int]
) -> Iterator[tuple[StageMetric, Sequence[float]]]:
    """Yield what there is of each stage."""
    num_used = route.num_pages - route.num_free_pages
    yield "bubble_ratio", route.bubble_ratios
    yield "refits", route.num_refits
    yield "kv_usage_ratio", [num_used / max(each, 1) for each in capacity_pages]
    yield "load_bytes_per_s", route.load_bytes_per_s
    yield "host_bytes_per_s", route.host_bytes_per_s
