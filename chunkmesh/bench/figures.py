"""The figures of a run, under the names that vLLM's result files have. Pure.

Only requests that ran to their end count in latencies and throughput; the others are counted apart.
Source: https://docs.vllm.ai/en/latest/benchmarking/cli/
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import numpy as np

from chunkmesh.bench.record import NOT_SENT, UNFINISHED, RequestRecord
from chunkmesh.bench.targets import METRICS, meets

Figures: TypeAlias = dict[str, float]


def figures(
    records: Sequence[RequestRecord],
    *,
    duration_s: float,
    percentiles: Sequence[float],
    targets: Mapping[str, float],
) -> Figures:
    """Return counts, rates a second and latencies in ms; a latency that no request has is left out.

    duration_s is from the run's begin to the last request's end, > 0.
    """
    done = [record for record in records if record.is_ok]
    found = _counts(records, done)
    found["duration"] = duration_s
    found["request_throughput"] = len(done) / duration_s
    if targets:
        num_good = sum(meets(record, targets) for record in done)
        found["good_completed"] = num_good
        found["request_goodput"] = num_good / duration_s
    found["input_throughput"] = found["total_input_tokens"] / duration_s
    found["output_throughput"] = found["total_output_tokens"] / duration_s
    total = found["total_input_tokens"] + found["total_output_tokens"]
    found["total_token_throughput"] = total / duration_s
    for metric in METRICS:
        found |= _spread(metric, latencies_ms(done, metric), percentiles)
    return found


def latencies_ms(records: Sequence[RequestRecord], metric: str) -> list[float]:
    """Return one of METRICS: of itl every gap, of the others one a request that has it."""
    if metric == "itl":
        return [gap for record in records for gap in record.itls_ms]
    value: Callable[[RequestRecord], float | None] = {
        "ttft": lambda record: record.ttft_ms,
        "tpot": lambda record: record.tpot_ms,
        "e2el": lambda record: record.e2el_ms,
    }[metric]
    return [found for record in records if (found := value(record)) is not None]


def percentile_name(percentile: float) -> str:
    """Return p99 of 99, p99.9 of 99.9."""
    return f"p{percentile:g}"


def failure_counts(records: Sequence[RequestRecord]) -> dict[str, dict[str, object]]:
    """Return how many requests failed by status, the commonest first, and what the first said."""
    failed = [record for record in records if record.has_failed]
    first = {record.status: record.error for record in reversed(failed)}
    counts = Counter(record.status for record in failed)
    return {
        status: {"count": count, "example": first[status]} for status, count in counts.most_common()
    }


def _counts(records: Sequence[RequestRecord], done: Sequence[RequestRecord]) -> Figures:
    input_tokens = sum(record.input_tokens for record in done)
    cached_tokens = sum(record.cached_tokens for record in done)
    num_messages = sum(len(record.arrivals_s) for record in done)
    output_tokens = sum(record.output_tokens for record in done)
    return {
        "completed": len(done),
        "failed": sum(record.has_failed for record in records),
        "unfinished": sum(record.status == UNFINISHED for record in records),
        "not_sent": sum(record.status == NOT_SENT for record in records),
        "total_input_tokens": input_tokens,
        "total_output_tokens": output_tokens,
        "total_cached_tokens": cached_tokens,
        "cached_ratio": cached_tokens / input_tokens if input_tokens else 0.0,
        "tokens_per_message": output_tokens / num_messages if num_messages else 0.0,
        "num_preemptions": sum(record.num_preemptions for record in done),
        "num_retries": sum(record.num_retries for record in records),
    }


def _spread(metric: str, values_ms: Sequence[float], percentiles: Sequence[float]) -> Figures:
    if not values_ms:
        return {}
    values = np.asarray(values_ms)
    found = {
        f"mean_{metric}_ms": float(values.mean()),
        f"median_{metric}_ms": float(np.median(values)),
        f"std_{metric}_ms": float(values.std()),
    }
    for percentile in percentiles:
        value = float(np.percentile(values, percentile))
        found[f"{percentile_name(percentile)}_{metric}_ms"] = value
    return found
