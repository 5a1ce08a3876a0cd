"""Records and results of benchmarks for tests, with round numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from chunkmesh.bench.client_lag import ClientLag
from chunkmesh.bench.record import OK, RequestRecord
from chunkmesh.bench.result import BenchResult, BenchRun

QUIET = ClientLag(loop_p99_ms=0.1, loop_max_ms=0.2, late_p99_ms=0.0, late_max_ms=0.0, cpu_share=0.1)


def record(
    index: int = 0,
    *,
    sent_s: float = 1.0,
    arrivals_s: Sequence[float] = (1.5, 1.6, 1.8),
    tokens: Sequence[int] | None = None,
    status: str = OK,
    **more: Any,
) -> RequestRecord:
    """Return a request of 100 tokens that was sent at 1 s and brought one token a message."""
    arrived = (1,) * len(arrivals_s) if tokens is None else tuple(tokens)
    return RequestRecord(
        index=index,
        status=status,
        due_s=sent_s,
        sent_s=sent_s,
        arrivals_s=tuple(arrivals_s),
        arrived_tokens=arrived,
        input_tokens=100,
        output_tokens=sum(arrived),
        **more,
    )


def run(figures: Mapping[str, float], **more: Any) -> BenchRun:
    """Return a whole run of these figures."""
    fields: dict[str, Any] = {
        "end": "complete",
        "figures": dict(figures),
        "failures": {},
        "lag": QUIET,
        "records": None,
    }
    return BenchRun(**{**fields, **more})


def result(*runs: BenchRun, workload: Mapping[str, Any] | None = None, **more: Any) -> BenchResult:
    """Return a result on a mesh of one stage."""
    fields: dict[str, Any] = {
        "origin": {"version": "0.1.0", "commit": "abc", "client": "2 cores"},
        "workload": {"num_prompts": 8, "seed": 0, "dataset": {"name": "random"}},
        "goodput_ms": {},
        "model": {"served_model_name": "fake"},
        "server": {"version": "0.1.0", "workers": [{"stage_index": 0, "device": "cpu"}]},
    }
    if workload is not None:
        fields["workload"] = workload
    return BenchResult(**{**fields, **more}, runs=runs)
