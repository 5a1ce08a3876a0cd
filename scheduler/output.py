"""What a result means for its output: progress, text, and perhaps the end. Pure.

An end id is reported among the output ids but its text is not shown, and it ends the output at
once; what the text sink held back comes with it. A stop string ends the output at once too, also
before min_new_tokens, which only keeps end ids from being chosen. One that waited for an earlier
one to complete may match only when the output ends; it then names the end.
"""

from __future__ import annotations

import dataclasses
from typing import Literal

from chunkmesh.errors import InvariantViolated
from chunkmesh.logprobs import TokenLogprobs
from scheduler.actions import Finished, Output, Progress, PromptLogprobs
from scheduler.request import Request


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """Why an output ended; at most one of the two matches is set."""

    reason: Literal["stop", "length", "abort"]
    matched_stop: str | None = None
    matched_token_id: int | None = None


def push_token(request: Request, token_id: int) -> tuple[str, Ending | None]:
    """Give an output its next token; return the text to send, and the end if that was it.

    Raises:
        InvariantViolated: the output is full already.
    """
    spec, text_sink = request.spec, request.spec.texts[request.child]
    if len(request.output_ids) >= spec.max_new_tokens:
        raise InvariantViolated(f"{request.request_id}: more than {spec.max_new_tokens} tokens")
    if not request.output_ids:
        request.first_prefill = request.last_prefill
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


def chunk_done(request: Request) -> bool:
    """Count one more chunk as done on every stage; return whether that is worth telling."""
    prefill = request.prefill
    prefill.chunk_done()
    if request.output_ids or prefill.done_tokens <= request.told_tokens:
        return False
    request.told_tokens = prefill.done_tokens
    return True


def progress(request: Request, eta_s: float) -> Progress:
    """Tell how far a prompt is."""
    prefill = request.prefill
    return Progress(
        request_id=request.request_id,
        total=request.prompt_tokens,
        cached=prefill.start,
        processed=prefill.done_tokens,
        chunk_index=prefill.num_done,
        chunks_planned=prefill.num_planned,
        eta_s=eta_s,
    )


def tell_prompt(request: Request, start: int, logprobs: TokenLogprobs) -> list[PromptLogprobs]:
    """Tell the log-probabilities of prompt tokens from position start on, but none twice."""
    num_known = request.num_prompt_logprobs - (start - 1)
    if num_known >= len(logprobs):
        return []
    if num_known > 0:
        start, logprobs = start + num_known, logprobs[num_known:]
    request.num_prompt_logprobs += len(logprobs)
    return [PromptLogprobs(request_id=request.request_id, start=start, logprobs=logprobs)]


def finished(request: Request, ending: Ending, child: int | None = None) -> Finished:
    """Sum up an output that ended as it should: child, if it is one that has not begun."""
    prefill = request.first_prefill or request.last_prefill
    return Finished(
        request_id=request.request_id,
        child=request.child if child is None else child,
        reason=ending.reason,
        matched_stop=ending.matched_stop,
        matched_token_id=ending.matched_token_id,
        cached_tokens=prefill.start if prefill else 0,
        chunk_tokens=prefill.sent_chunk_tokens if prefill else (),
        num_preemptions=request.setbacks.num_preemptions,
        num_recoveries=request.setbacks.num_recoveries,
    )


def aborted(request: Request, *, is_heard: bool) -> list[Output | Finished]:
    """End an output, and all it stands for, on its caller's wish.

    Text that was held back is told if the caller still listens.
    """
    told: list[Output | Finished] = []
    for child in request.children:
        text = request.spec.texts[child].flush() if is_heard else ""
        if text:
            told.append(Output(request_id=request.request_id, child=child, token_ids=(), text=text))
        told.append(finished(request, Ending(reason="abort"), child))
    return told
