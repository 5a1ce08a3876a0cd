"""Says in plain text when the stages worked on some requests, and what was expected. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Iterator

from chunkmesh.cli import timeline_text
from chunkmesh.cli.pipeline_trace import PipelineTrace
from chunkmesh.cli.timeline import Timeline


def trace_text(trace: PipelineTrace, width: int) -> str:
    """Return lanes and a table for each request; width is that of the lanes."""
    return "\n\n".join(_request_text(trace, index, width) for index in range(len(trace.requests)))


def _request_text(trace: PipelineTrace, index: int, width: int) -> str:
    request = trace.requests[index]
    timeline = Timeline.of_told(request.told)
    lines = [request.headline]
    if index:
        lines[0] += f"; arrived {request.arrived_us / 1e6:.3f} s after the first"
    lines.append(timeline_text.draw(timeline, width))
    lines += _bubble_lines(trace, index)
    lines += _expectation_lines(timeline)
    num_told, num_parts = len(request.told.microbatches), request.told.num_parts
    if num_told < num_parts:
        lines.append(f"only the first {num_told} of its {num_parts} parts were kept")
    return "\n".join(lines)


def _bubble_lines(trace: PipelineTrace, index: int) -> Iterator[str]:
    """Say how much of its prefill the stages stood still."""
    prefill_us = trace.prefill_us(index)
    if prefill_us is None:
        return
    ratio = trace.bubble_ratio(*prefill_us)
    shown = "these requests" if len(trace.requests) > 1 else "this request"
    yield f"bubble ratio of its prefill: {ratio:.1%} (stages computed nothing of {shown})"


def _expectation_lines(timeline: Timeline) -> Iterator[str]:
    """Compare measured compute of chunks with what the latency model expected."""
    for stage in range(timeline.num_stages):
        ratios = [
            (work.end_s - work.start_s) / work.predicted_s
            for work in timeline.works(timeline.chunks)
            if work.stage_index == stage and work.predicted_s
        ]
        if ratios:
            yield (
                f"stage {stage}: measured over expected compute of chunks: median"
                f" {statistics.median(ratios):.2f}, {min(ratios):.2f} to {max(ratios):.2f}"
            )
