"""What the scheduler counts for /metrics: requests that have ended, and faults of the cache.

One set a process, as the side door shows it. Tokens are those of the usage that clients are told.
"""

from __future__ import annotations

from prometheus_client import Counter

from scheduler.request_stream import RequestStream

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
_PREEMPTIONS = Counter(
    "chunkmesh_preemptions", "Times that an output gave its pages to others and waited again."
)
_CACHE_FAULTS = Counter("chunkmesh_cache_faults", "Calls of hicache-server that failed.")


def count_cache_fault() -> None:
    """Count a failed call of hicache-server."""
    _CACHE_FAULTS.inc()


def count_preemptions(num_preemptions: int) -> None:
    """Count outputs that gave their pages to others."""
    _PREEMPTIONS.inc(num_preemptions)


def count_request(stream: RequestStream) -> None:
    """Count a request that has ended."""
    _REQUESTS.labels(finish_reason=stream.finish_reason).inc()
    _PROMPT_TOKENS.inc(stream.prompt_tokens)
    _CACHED_TOKENS.inc(stream.cached_tokens)
    _OUTPUT_TOKENS.inc(stream.output_tokens)
