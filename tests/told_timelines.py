"""Timelines as GetTimelines tells them, made of a few figures."""

from __future__ import annotations

from collections.abc import Sequence

from chunkmesh.v1 import generation_pb2 as pb

MS = 1000
"""Microseconds."""


def told(
    request_id: str,
    parts: Sequence[tuple[int, int, int]],
    *,
    arrived_us: int = 0,
    prompt_tokens: int = 128,
    num_stages: int = 2,
    predicted_ms: int | None = None,
    finish_reason: str = "length",
) -> pb.GetTimelinesResponse:
    """Return a request of parts (seq_no, start, num_tokens).

    Microbatch n computes on stage s from n + s to n + s + 1 ms of the common clock, waits half a
    millisecond before, and is sent for a quarter behind; all clocks begin at 1 s.
    """
    message = pb.GetTimelinesResponse(
        request_id=request_id,
        arrived_us=1_000_000 + arrived_us,
        now_us=9_000_000,
        prompt_tokens=prompt_tokens,
        output_tokens=2,
        finish_reason=finish_reason,
        num_parts=len(parts),
    )
    if finish_reason:
        message.first_token_us = 3 * MS
        message.ended_us = 6 * MS
    for seq_no, start, num_tokens in parts:
        timing = message.microbatches.add(
            epoch=1, seq_no=seq_no, start=start, num_tokens=num_tokens, microbatch_tokens=64
        )
        if predicted_ms is not None:
            timing.predicted_us.extend([predicted_ms * MS] * num_stages)
        for stage in range(num_stages):
            timing.stages.add(
                stage_index=stage,
                start_us=(seq_no + stage) * MS - arrived_us,
                wait_us=MS // 2,
                compute_us=MS,
                send_us=MS // 4 if stage + 1 < num_stages else 0,
            )
    return message
