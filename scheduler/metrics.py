"""What the scheduler tells in /metrics of itself: calls, recoveries, faults, how prompts are cut.

One set a process, as the side door shows it.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Enum, Gauge, Histogram

from scheduler.engine_config import CHUNK_STRATEGIES
from scheduler.recoveries import RecoveryCounts
from scheduler.snapshot import Snapshot

_OPEN_CALLS = Gauge(
    "chunkmesh_open_calls", "Generate calls that are read, wait, run or are still to be taken."
)
_TASKS = Gauge("chunkmesh_tasks", "Tasks of the scheduler's event loop.")
_PREEMPTIONS = Counter(
    "chunkmesh_preemptions", "Times that an output gave its pages to others and waited again."
)
_RECOVERIES = Counter(
    "chunkmesh_recoveries",
    "Routes lost while outputs ran on them, by what a worker did: its stream ended, it was"
    " silent, fenced, had a fault or left.",
    ["cause"],
)
_RECOVERED = Counter(
    "chunkmesh_recovered_outputs", "Times that an output lost its route and waited again."
)
_RECOVERY_SECONDS = Histogram(
    "chunkmesh_recovery_seconds",
    "From the loss of a route to the first result of an output that was resumed after it.",
    buckets=(0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 3.0, 5.0, 10.0, 30.0, 60.0),
)
_LEADS = Gauge("chunkmesh_leads", "Whether this scheduler leads its mesh, 1, or stands by, 0.")
_CACHE_FAULTS = Counter("chunkmesh_cache_faults", "Calls of hicache-server that failed.")
_CHUNK_STRATEGY = Enum(
    "chunkmesh_chunk_strategy", "How prompts are cut now.", states=CHUNK_STRATEGIES
)
_CHUNK_FALLBACK = Gauge(
    "chunkmesh_chunk_strategy_fallback", "1 if prompts are not cut as asked for, else 0."
)


def show_chunks(now: Snapshot) -> None:
    """Show how prompts are cut."""
    _CHUNK_STRATEGY.state(now.chunk_strategy)
    _CHUNK_FALLBACK.set(bool(now.chunk_strategy_reason))


def count_cache_fault() -> None:
    """Count a failed call of hicache-server."""
    _CACHE_FAULTS.inc()


class RecoveryReport:
    """Brings the metrics of routes up to what an engine has counted."""

    def __init__(self) -> None:
        """Begin with an engine that has counted nothing."""
        self._told = RecoveryCounts()

    def show(self, now: Snapshot, took_s: Iterable[float]) -> None:
        """Tell what has changed, with the recoveries that have ended since the last time."""
        told, counts = self._told, now.recoveries
        self._told = counts
        for cause, count in counts.routes.items():
            _RECOVERIES.labels(cause).inc(count - told.routes[cause])
        _RECOVERED.inc(counts.outputs - told.outputs)
        for seconds in took_s:
            _RECOVERY_SECONDS.observe(seconds)


def count_preemptions(num_preemptions: int) -> None:
    """Count outputs that gave their pages to others."""
    _PREEMPTIONS.inc(num_preemptions)


def show_leads(leads: bool) -> None:
    """Show whether this scheduler leads."""
    _LEADS.set(leads)


def show_calls(num_calls: int, num_tasks: int) -> None:
    """Show how many calls are open, and how many tasks there are."""
    _OPEN_CALLS.set(num_calls)
    _TASKS.set(num_tasks)
