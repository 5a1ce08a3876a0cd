"""Writes a trace in the Trace Event Format, which Perfetto and chrome://tracing open. Pure.

A process for each stage, with a thread for compute (and the waits before it) and one for sends; a
process for the requests, with a thread each. Arrows join a microbatch from stage to stage.
Source: https://docs.google.com/document/d/1CvAClvFfyA5R-PhYUmn5OOQtYMH4h6I0nSsKchNAySU
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TypeAlias

from chunkmesh.cli.pipeline_trace import PipelineTrace, StageRun, TracedRequest

Event: TypeAlias = dict[str, object]

_REQUESTS_PID = 1
"""Process ids of 0 are dropped by some viewers; stage n is n + 2."""
_COMPUTE_TID = 1
_SEND_TID = 2


def chrome_trace(trace: PipelineTrace) -> dict[str, object]:
    """Return the object to be written as JSON; ts and dur are microseconds."""
    events = [
        *_names(trace),
        *_request_events(trace),
        *itertools.chain.from_iterable(_run_events(trace, run) for run in trace.runs),
        *_arrows(trace),
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _names(trace: PipelineTrace) -> Iterator[Event]:
    """Name and order processes and threads."""
    yield from _process(_REQUESTS_PID, "requests")
    for index, request in enumerate(trace.requests):
        yield _thread(_REQUESTS_PID, index + 1, request.told.request_id)
    for stage in range(trace.num_stages):
        yield from _process(_pid(stage), f"stage {stage}")
        yield _thread(_pid(stage), _COMPUTE_TID, "compute")
        yield _thread(_pid(stage), _SEND_TID, "send")


def _process(pid: int, name: str) -> Iterator[Event]:
    yield {"ph": "M", "name": "process_name", "pid": pid, "tid": 0, "args": {"name": name}}
    yield {
        "ph": "M",
        "name": "process_sort_index",
        "pid": pid,
        "tid": 0,
        "args": {"sort_index": pid},
    }


def _thread(pid: int, tid: int, name: str) -> Event:
    return {"ph": "M", "name": "thread_name", "pid": pid, "tid": tid, "args": {"name": name}}


def _pid(stage: int) -> int:
    return stage + 2


def _request_events(trace: PipelineTrace) -> Iterator[Event]:
    """Show each request until its first token, and from there to its end."""
    for index, request in enumerate(trace.requests):
        ended_us = trace.end_us if request.ended_us is None else request.ended_us
        first_us = ended_us if request.first_token_us is None else request.first_token_us
        args = _request_args(request)
        where = {"pid": _REQUESTS_PID, "tid": index + 1, "args": args}
        yield _slice("to first token", "request", request.arrived_us, first_us) | where
        if request.first_token_us is not None and ended_us > first_us:
            yield _slice("decode", "request", first_us, ended_us) | where


def _request_args(request: TracedRequest) -> dict[str, object]:
    told = request.told
    return {
        "request_id": told.request_id,
        "prompt_tokens": told.prompt_tokens,
        "cached_tokens": told.cached_tokens,
        "output_tokens": told.output_tokens,
        "finish_reason": told.finish_reason or "running",
        "num_parts": told.num_parts,
        "num_parts_told": len(told.microbatches),
    }


def _run_events(trace: PipelineTrace, run: StageRun) -> Iterator[Event]:
    """Show what one stage did for one microbatch."""
    args = _run_args(trace, run)
    compute = {"pid": _pid(run.stage), "tid": _COMPUTE_TID, "args": args}
    if run.start_us > run.ready_us:
        yield _slice("wait", "wait", run.ready_us, run.start_us) | compute
    yield _slice(run_name(run), _category(run), run.start_us, run.end_us) | compute
    if run.sent_us > run.end_us:
        send = {"pid": _pid(run.stage), "tid": _SEND_TID, "args": args}
        yield _slice("send", "send", run.end_us, run.sent_us) | send


def _slice(name: str, category: str, start_us: int, end_us: int) -> Event:
    return {
        "ph": "X",
        "name": name,
        "cat": category,
        "ts": start_us,
        "dur": end_us - start_us,
    }


def run_name(run: StageRun) -> str:
    """Say what a microbatch carries: "chunk 3", "2 chunks + decode", "decode"."""
    chunks = [part.chunk for part in run.microbatch.parts if part.chunk is not None]
    words = []
    if chunks:
        words.append(f"chunk {chunks[0]}" if len(chunks) == 1 else f"{len(chunks)} chunks")
    if len(chunks) < len(run.microbatch.parts):
        words.append("decode")
    return " + ".join(words)


def _category(run: StageRun) -> str:
    return "prefill" if any(part.chunk is not None for part in run.microbatch.parts) else "decode"


def _run_args(trace: PipelineTrace, run: StageRun) -> dict[str, object]:
    microbatch = run.microbatch
    args: dict[str, object] = {
        "epoch": microbatch.epoch,
        "seq_no": microbatch.seq_no,
        "microbatch_tokens": microbatch.num_tokens,
        "measured_ms": run.compute_us / 1000,
    }
    if run.predicted_us is not None:
        args["predicted_ms"] = run.predicted_us / 1000
    if run.predicted_us:
        args["measured_over_predicted"] = round(run.compute_us / run.predicted_us, 3)
    args["parts"] = [
        {
            "request_id": trace.requests[part.request].told.request_id,
            "chunk": part.chunk,
            "first_position": part.start,
            "tokens": part.num_tokens,
        }
        for part in microbatch.parts
    ]
    return args


def _arrows(trace: PipelineTrace) -> Iterator[Event]:
    """Join the computes of a microbatch on neighbouring stages."""
    runs = {(run.microbatch.epoch, run.microbatch.seq_no, run.stage): run for run in trace.runs}
    arrow_ids = itertools.count(1)
    for (epoch, seq_no, stage), run in runs.items():
        after = runs.get((epoch, seq_no, stage + 1))
        if after is None:
            continue
        arrow = {"name": "activation", "cat": "activation", "id": next(arrow_ids)}
        yield arrow | {
            "ph": "s",
            "ts": run.start_us,
            "pid": _pid(stage),
            "tid": _COMPUTE_TID,
        }
        yield arrow | {
            "ph": "f",
            "bp": "e",
            "ts": after.start_us,
            "pid": _pid(stage + 1),
            "tid": _COMPUTE_TID,
        }
