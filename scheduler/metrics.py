"""What the scheduler tells in /metrics: requests and calls, cache faults, chunks, the pipeline.

One set a process, as the side door shows it. Tokens are those of the usage that clients are told.
"""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import Counter, Enum, Gauge, Histogram

from scheduler.engine_config import CHUNK_STRATEGIES
from scheduler.recoveries import RecoveryCounts
from scheduler.request_stream import RequestStream
from scheduler.snapshot import Snapshot

_REQUESTS = Counter(
    "chunkmesh_requests", "Requests that ended, by finish reason or error.", ["finish_reason"]
)
_PROMPT_TOKENS = Counter(
    "chunkmesh_prompt_tokens", "Prompt tokens, cached ones included; once for all outputs."
)
_CACHED_TOKENS = Counter(
    "chunkmesh_cached_tokens", "Prompt tokens that were taken from the prefix cache."
)
_OUTPUT_TOKENS = Counter("chunkmesh_output_tokens", "Output tokens of all outputs.")
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
_PARKED = Gauge("chunkmesh_parked_outputs", "Outputs that wait because no route stands.")
_CACHE_FAULTS = Counter("chunkmesh_cache_faults", "Calls of hicache-server that failed.")
_CHUNK_STRATEGY = Enum(
    "chunkmesh_chunk_strategy", "How prompts are cut now.", states=CHUNK_STRATEGIES
)
_CHUNK_FALLBACK = Gauge(
    "chunkmesh_chunk_strategy_fallback", "1 if prompts are not cut as asked for, else 0."
)
_REFITS = Gauge(
    "chunkmesh_latency_refits",
    "Times that a stage's latency was replaced on this route.",
    ["stage"],
)
_BUBBLE = Gauge(
    "chunkmesh_bubble_ratio",
    "Share of the time in which a stage waited while microbatches were in flight, lately.",
    ["stage"],
)
_PREDICTION = Histogram(
    "chunkmesh_predicted_over_measured_ratio",
    "Predicted over measured compute time of a microbatch.",
    ["stage"],
    buckets=(0.25, 0.5, 0.7, 0.8, 0.9, 0.95, 1.0, 1.05, 1.1, 1.2, 1.4, 2.0, 4.0),
)


def show_pipeline(now: Snapshot) -> None:
    """Show how prompts are cut, and how the stages of the route are used."""
    _CHUNK_STRATEGY.state(now.chunk_strategy)
    _CHUNK_FALLBACK.set(bool(now.chunk_strategy_reason))
    for stage, num_refits in enumerate(now.num_refits):
        _REFITS.labels(stage=stage).set(num_refits)
    for stage, ratio in enumerate(now.bubble_ratios):
        _BUBBLE.labels(stage=stage).set(ratio)


def observe_prediction(stage: int, ratio: float) -> None:
    """Count the predicted over the measured time of one microbatch on a stage."""
    _PREDICTION.labels(stage=stage).observe(ratio)


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
        _PARKED.set(now.num_parked)


def count_preemptions(num_preemptions: int) -> None:
    """Count outputs that gave their pages to others."""
    _PREEMPTIONS.inc(num_preemptions)


def show_calls(num_calls: int, num_tasks: int) -> None:
    """Show how many calls are open, and how many tasks there are."""
    _OPEN_CALLS.set(num_calls)
    _TASKS.set(num_tasks)


def count_request(stream: RequestStream) -> None:
    """Count a request that has ended."""
    _REQUESTS.labels(finish_reason=stream.finish_reason).inc()
    _PROMPT_TOKENS.inc(stream.prompt_tokens)
    _CACHED_TOKENS.inc(stream.cached_tokens)
    _OUTPUT_TOKENS.inc(stream.output_tokens)
