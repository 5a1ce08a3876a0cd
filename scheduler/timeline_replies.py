"""From when the stages worked on a request to the messages that tell it."""

from __future__ import annotations

import asyncio

from chunkmesh.v1 import generation_pb2 as pb
from scheduler.replies import timing
from scheduler.timeline import to_us
from scheduler.timeline_history import RequestTimeline

_PARTS_A_TURN = 64


async def response(timeline: RequestTimeline, *, now_s: float) -> pb.GetTimelinesResponse:
    """Write all that is kept of one request; now_s is the scheduler's clock.

    Thousands of microbatches take long to write; between some the loop gets its turn.
    """
    message = pb.GetTimelinesResponse(
        request_id=timeline.request_id,
        arrived_us=timeline.track.arrived_us,
        now_us=to_us(now_s),
        prompt_tokens=timeline.prompt_tokens,
        cached_tokens=timeline.cached_tokens,
        output_tokens=timeline.output_tokens,
        first_token_us=timeline.first_token_us,
        ended_us=timeline.ended_us,
        finish_reason=timeline.finish_reason,
        num_parts=timeline.track.num_parts,
    )
    for first in range(0, timeline.track.num_kept, _PARTS_A_TURN):
        parts = timeline.track.timings(slice(first, first + _PARTS_A_TURN))
        message.microbatches.extend(map(timing, parts))
        await asyncio.sleep(0)
    return message
