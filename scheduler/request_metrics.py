"""What the scheduler tells in /metrics of requests: how many, how fast, what became of them.

One set a process, as the side door shows it. Tokens are those of the usage that clients are told.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from prometheus_client import Counter, Gauge, Histogram

from chunkmesh.errors import ChunkMeshError
from chunkmesh.status import to_status
from scheduler.census import Census
from scheduler.observations import Observations, taken
from scheduler.request_stream import RequestStream, TokenTime

LATENCY_BUCKETS_S = (
    *(0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0),
    *(80.0, 160.0, 320.0, 640.0, 1200.0, 1800.0),
)
"""Prompts of a million tokens take minutes."""
_GAP_BUCKETS_S = (
    *(0.0025, 0.005, 0.01, 0.015, 0.02, 0.03, 0.04, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.5),
    *(1.0, 2.5, 10.0, 60.0),
)

_REQUESTS = Counter(
    "chunkmesh_requests",
    "Generate calls that ended, by finish reason (several outputs' joined by commas), by the"
    " error's name or as gone if the client was; and by the status that the call ended with.",
    ["outcome", "code"],
)
_RUNNING = Gauge(
    "chunkmesh_num_requests_running",
    "Requests of which an output has a place on a route, loading ones included.",
)
_WAITING = Gauge(
    "chunkmesh_num_requests_waiting",
    "Requests that wait: cache, for what HiCache has; place, for pages and a row; route, for one"
    " that stands.",
    ["reason"],
)
_PROMPT_TOKENS = Counter(
    "chunkmesh_prompt_tokens",
    "Prompt tokens of requests that ended, cached ones included; once for all outputs.",
)
_CACHED_TOKENS = Counter(
    "chunkmesh_cached_tokens",
    "Prompt tokens of requests that ended that were taken from the prefix cache.",
)
_OUTPUT_TOKENS = Counter("chunkmesh_output_tokens", "Output tokens of all outputs, as they come.")
_TTFT = Histogram(
    "chunkmesh_time_to_first_token_seconds",
    "From a Generate call to its first token, the time in the queue included.",
    buckets=LATENCY_BUCKETS_S,
)
_ITL = Histogram(
    "chunkmesh_inter_token_latency_seconds",
    "From a token to the next one of the same output.",
    buckets=_GAP_BUCKETS_S,
)
_E2E = Histogram(
    "chunkmesh_e2e_request_latency_seconds",
    "From a Generate call to its last token; of calls whose outputs all ended by stop or length.",
    buckets=LATENCY_BUCKETS_S,
)
_QUEUE = Histogram(
    "chunkmesh_request_queue_time_seconds",
    "From a request's arrival at the engine to its first place on a route.",
    buckets=LATENCY_BUCKETS_S,
)
_CHUNK_TOKENS = Histogram(
    "chunkmesh_chunk_tokens",
    "Length of the chunks that were sent, those of repeated prefills included.",
    buckets=tuple(float(1 << n) for n in range(4, 18)),
)


def show_census(now: Census) -> None:
    """Show how many requests run and wait."""
    _RUNNING.set(now.num_running)
    for reason, num_waiting in now.num_waiting.items():
        _WAITING.labels(reason).set(num_waiting)


def take_observations(seen: Observations) -> None:
    """Spread over buckets what the engine saw since the last time."""
    for seconds in taken(seen.queue_s):
        _QUEUE.observe(seconds)
    for tokens in taken(seen.chunk_tokens):
        _CHUNK_TOKENS.observe(tokens)


def observe_token(time: TokenTime) -> None:
    """Count one output token, and how long its client has waited for it."""
    _OUTPUT_TOKENS.inc()
    if time.since_arrival_s is not None:
        _TTFT.observe(time.since_arrival_s)
    if time.gap_s is not None:
        _ITL.observe(time.gap_s)


def count_request(stream: RequestStream) -> None:
    """Count a request that has ended."""
    reason = stream.finish_reason
    _REQUESTS.labels(outcome=reason, code=_code(stream)).inc()
    _PROMPT_TOKENS.inc(stream.prompt_tokens)
    _CACHED_TOKENS.inc(stream.cached_tokens)
    if stream.has_finished and "abort" not in reason:
        _E2E.observe(stream.e2e_ms / 1000)


@contextlib.contextmanager
def counted_refusals() -> Iterator[None]:
    """Count a request that is refused inside."""
    try:
        yield
    except ChunkMeshError as error:
        _REQUESTS.labels(outcome=type(error).__name__, code=_code_of(error)).inc()
        raise


def _code(stream: RequestStream) -> str:
    """Return the status that a call ends with."""
    if stream.has_finished:
        return "OK"
    return "CANCELLED" if stream.error is None else _code_of(stream.error)


def _code_of(error: ChunkMeshError) -> str:
    return to_status(error).code.name
