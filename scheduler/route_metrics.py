"""What the scheduler tells in /metrics of workers and routes, and how well latencies are known.

Epochs and worker ids are no labels: every restart makes new ones.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from prometheus_client import Counter, Gauge

from chunkmesh.layers import LayerRange
from scheduler.registry import Registry
from scheduler.stage_fit import StageFit

WorkerLoss = Literal["ended", "silent", "fenced"]
"""How a worker was lost: its stream ended, it said nothing, or it was beyond a deadline."""

_ROUTES = Gauge("chunkmesh_routes", "Routes that stand.")
_WORKERS = Gauge("chunkmesh_workers", "Attached workers, by what they do.", ["state"])
_LOST_ROUTES = Counter("chunkmesh_lost_routes", "Routes that stood and broke.")
_LOST_WORKERS = Counter(
    "chunkmesh_lost_workers", "Workers lost without having said that they leave.", ["cause"]
)
_STAGE_UP = Gauge(
    "chunkmesh_stage_up",
    "Whether a worker of the stage's layers is attached and does not leave, 1 or 0; stages are"
    " those of the route that was formed last.",
    ["stage"],
)
_ERROR = Gauge(
    "chunkmesh_stage_fit_median_error_ratio",
    "Relative error of a stage's latency at points that the fit had not seen, median; the largest"
    " over the routes.",
    ["stage"],
)
_ACCEPTED = Gauge(
    "chunkmesh_stage_fit_accepted",
    "Whether chunks may be planned with a stage's latency on all routes, 1 or 0.",
    ["stage"],
)


def count_lost_route() -> None:
    """Count a route that broke."""
    _LOST_ROUTES.inc()


def count_lost_worker(cause: WorkerLoss) -> None:
    """Count a worker that was lost."""
    _LOST_WORKERS.labels(cause=cause).inc()


def show_workers(registry: Registry) -> None:
    """Show how many routes stand, and what the workers do."""
    standing = {id_ for route in registry.standing() for id_ in route.worker_ids}
    in_route = {id_ for route in registry.routes.values() for id_ in route.worker_ids}
    leaving = registry.leaving
    _ROUTES.set(len(registry.standing()))
    for state, num_workers in (
        ("serving", len(standing)),
        ("joining", len(in_route - standing)),
        ("leaving", len(leaving)),
        ("spare", len(registry.workers.keys() - in_route - leaving)),
    ):
        _WORKERS.labels(state=state).set(num_workers)


def show_stages(layers: Sequence[LayerRange], registry: Registry) -> None:
    """Show which stages of a mesh that is cut into these layers have a worker."""
    _STAGE_UP.clear()
    held = {
        worker.layers
        for worker_id, worker in registry.workers.items()
        if worker_id not in registry.leaving
    }
    for stage, each in enumerate(layers):
        _STAGE_UP.labels(stage).set(each in held)


def show_fits(routes: Sequence[Sequence[StageFit]]) -> None:
    """Show the fits of all routes that stand, by stage."""
    _ERROR.clear()
    _ACCEPTED.clear()
    for stage in range(max(map(len, routes), default=0)):
        fits = [route[stage] for route in routes if stage < len(route)]
        _ACCEPTED.labels(stage).set(all(fit.refused is None for fit in fits))
        errors = [fit.median_error for fit in fits if fit.median_error is not None]
        if errors:
            _ERROR.labels(stage).set(max(errors))
