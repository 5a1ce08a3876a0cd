"""What a result means for its request: progress, text, and perhaps the end. Pure.

An end id is reported among the output ids but its text is not shown, and it ends the output at
once; what the text sink held back comes with it. A stop string ends the output at once too, also
before min_new_tokens, which only keeps end ids from being chosen. One that waited for an earlier
one to complete may match only when the output ends; it then names the end.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from chunkmesh.errors import InvariantViolated
from scheduler.actions import Finished, Progress
from scheduler.request import Request


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why a request ended; at most one of the two matches is set."""

    reason: Literal["stop", "length", "abort"]
    matched_stop: str | None = None
    matched_token_id: int | None = None


def push_token(request: Request, token_id: int) -> tuple[str, Ending | None]:
    """Give a request its next output token; return the text to send, and the end if that was it.

    Raises:
        InvariantViolated: the output is full already.
    """
    spec, text_sink = request.spec, request.spec.texts[0]
    if len(request.output_ids) >= spec.max_new_tokens:
        raise InvariantViolated(f"{request.request_id}: more than {spec.max_new_tokens} tokens")
    request.output_ids.append(token_id)
    ending: Ending | None = None
    if token_id in spec.end_ids:
        text, ending = text_sink.flush(), Ending(reason="stop", matched_token_id=token_id)
    else:
        text = text_sink.push(token_id)
        if text_sink.matched_stop is None and len(request.output_ids) == spec.max_new_tokens:
            text, ending = text + text_sink.flush(), Ending(reason="length")
    if text_sink.matched_stop is not None:
        ending = Ending(reason="stop", matched_stop=text_sink.matched_stop)
    return text, ending


def chunk_done(request: Request, now_s: float) -> Progress:
    """Count one more chunk as done on every stage, and tell."""
    chunks = request.chunks
    if chunks is None:
        raise InvariantViolated(f"{request.request_id}: a chunk without a plan")
    chunks.num_done += 1
    return Progress(
        request_id=request.request_id,
        total=request.prompt_tokens,
        cached=chunks.start,
        processed=chunks.done_tokens,
        chunk_index=chunks.num_done,
        chunks_planned=len(chunks.ends),
        eta_s=request.eta_s(now_s),
    )


def finished(request: Request, ending: Ending) -> Finished:
    """Sum up a request that ended as it should."""
    return Finished(
        request_id=request.request_id,
        child=0,
        reason=ending.reason,
        matched_stop=ending.matched_stop,
        matched_token_id=ending.matched_token_id,
        cached_tokens=request.hit_tokens,
        chunk_tokens=request.chunks.sent_chunk_tokens() if request.chunks else (),
        num_preemptions=0,
    )
