"""From what happened to a request to the messages of its Generate call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Iterator

from chunkmesh.logprobs import TokenLogprobs, join
from chunkmesh.logprobs_codec import to_message
from chunkmesh.v1 import common_pb2
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.actions import Finished, Progress, PromptLogprobs
from scheduler.request_stream import OutputNews, RequestStream
from scheduler.timeline import MicrobatchTiming

MAX_PROMPT_PART_BYTES = 1 << 20
"""Of one message with log-probabilities of the prompt: clients of other makers take 4 MiB at most
unless told otherwise, and writing a larger one would hold up the loop."""
_MAX_VARINT_BYTES = 5

_REASONS = {
    "stop": pb.FINISH_REASON_STOP,
    "length": pb.FINISH_REASON_LENGTH,
    "abort": pb.FINISH_REASON_ABORT,
}


async def responses(
    request: pb.GenerateRequest,
    request_id: str,
    stream: RequestStream,
    timeline: Callable[[], Iterable[MicrobatchTiming]],
) -> AsyncIterator[pb.GenerateResponse]:
    """Yield what the client asked to hear, until all outputs have ended.

    Raises:
        ChunkMeshError: the request failed; outputs that ended before have been yielded.
    """
    num_completes = 0
    while num_completes < len(stream.outputs):
        update = await stream.next_update()
        if update.progress is not None and request.return_progress:
            progress = _progress(update.progress)
            yield pb.GenerateResponse(request_id=request_id, progress=progress)
        for part in prompt_parts(update.prompt_logprobs):
            yield pb.GenerateResponse(request_id=request_id, prompt_logprobs=part)
        for child, news in update.outputs.items():
            if request.stream and (news.token_ids or news.text):
                chunk = _chunk(child, news, stream)
                yield pb.GenerateResponse(request_id=request_id, chunk=chunk)
            if news.finished is not None:
                complete = _complete(news.finished, stream)
                num_completes += 1
                if request.return_timeline and num_completes == len(stream.outputs):
                    complete.timeline.extend(map(timing, timeline()))
                yield pb.GenerateResponse(request_id=request_id, complete=complete)
        if update.error is not None:
            raise update.error


def _progress(progress: Progress) -> pb.PromptProgress:
    """Write how far prefill has come."""
    return pb.PromptProgress(
        total=progress.total,
        cached=progress.cached,
        processed=progress.processed,
        chunk_index=progress.chunk_index,
        chunks_planned=progress.chunks_planned,
        eta_ms=round(1000 * progress.eta_s),
    )


def prompt_parts(news: list[PromptLogprobs]) -> Iterator[pb.PromptLogprobs]:
    """Write consecutive parts as few messages of at most MAX_PROMPT_PART_BYTES.

    What the parts hold is joined first, for one token a part would drown it in overhead.
    """
    if not news:
        return
    joined = join([part.logprobs for part in news])
    per_message = MAX_PROMPT_PART_BYTES // _row_bytes(joined)
    for first in range(0, len(joined), per_message):
        part = to_message(joined[first : first + per_message])
        yield pb.PromptLogprobs(start=news[0].start + first, logprobs=part)


def _row_bytes(logprobs: TokenLogprobs) -> int:
    """Return how much one token's log-probabilities take at most in a message."""
    num_top: int = logprobs.top_ids_Tk.shape[1]
    return 4 + (4 + _MAX_VARINT_BYTES) * num_top


def _chunk(child: int, news: OutputNews, stream: RequestStream) -> pb.GenerateStreamChunk:
    """Write new output."""
    return pb.GenerateStreamChunk(
        text=news.text,
        token_ids=news.token_ids,
        prompt_tokens=stream.prompt_tokens,
        completion_tokens=news.num_tokens,
        cached_tokens=stream.cached_tokens,
        index=child,
        logprobs=_token_logprobs(news.logprobs),
    )


def _complete(finished: Finished, stream: RequestStream) -> pb.GenerateComplete:
    """Write the end of an output."""
    output = stream.outputs[finished.child]
    complete = pb.GenerateComplete(
        text="".join(output.text_parts),
        output_ids=output.ids,
        finish_reason=_REASONS[finished.reason],
        prompt_tokens=stream.prompt_tokens,
        completion_tokens=len(output.ids),
        cached_tokens=finished.cached_tokens,
        chunk_tokens=finished.chunk_tokens,
        ttft_ms=output.ttft_ms,
        e2e_ms=output.e2e_ms,
        index=finished.child,
        logprobs=_token_logprobs(output.logprobs),
        num_preemptions=finished.num_preemptions,
    )
    if finished.matched_stop is not None:
        complete.matched_stop = finished.matched_stop
    if finished.matched_token_id is not None:
        complete.matched_token_id = finished.matched_token_id
    return complete


def _token_logprobs(parts: list[TokenLogprobs]) -> common_pb2.TokenLogprobs | None:
    """Write the log-probabilities of output tokens, if there are any."""
    return to_message(join(parts)) if parts else None


def timing(timing: MicrobatchTiming) -> pb.MicrobatchTiming:
    """Write when the stages worked on one microbatch."""
    return pb.MicrobatchTiming(
        epoch=timing.epoch,
        seq_no=timing.seq_no,
        start=timing.start,
        num_tokens=timing.num_tokens,
        microbatch_tokens=timing.microbatch_tokens,
        stages=[
            pb.StageTiming(
                stage_index=stage.stage,
                start_us=stage.start_us,
                wait_us=stage.wait_us,
                compute_us=stage.compute_us,
                send_us=stage.send_us,
            )
            for stage in timing.stages
        ],
        predicted_us=timing.predicted_us,
    )
