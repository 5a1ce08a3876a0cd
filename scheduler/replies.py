"""From what happened to a request to the messages of its Generate call."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable

from chunkmesh.v1 import generation_pb2 as pb
from scheduler.actions import Finished, Progress
from scheduler.request_stream import RequestStream, Update
from scheduler.timeline import MicrobatchTiming

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
    """Yield what the client asked to hear, until the end.

    Raises:
        ChunkMeshError: the request failed.
    """
    while True:
        update = await stream.next_update()
        if update.progress is not None and request.return_progress:
            progress = _progress(update.progress)
            yield pb.GenerateResponse(request_id=request_id, progress=progress)
        if update.token_ids and request.stream:
            yield pb.GenerateResponse(request_id=request_id, chunk=_chunk(update, stream))
        if update.error is not None:
            raise update.error
        if update.finished is not None:
            complete = _complete(update.finished, stream)
            if request.return_timeline:
                complete.timeline.extend(_timing(each) for each in timeline())
            yield pb.GenerateResponse(request_id=request_id, complete=complete)
            return


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


def _chunk(update: Update, stream: RequestStream) -> pb.GenerateStreamChunk:
    """Write new output."""
    return pb.GenerateStreamChunk(
        text=update.text,
        token_ids=update.token_ids,
        prompt_tokens=stream.prompt_tokens,
        completion_tokens=len(stream.output_ids),
        cached_tokens=stream.cached_tokens,
    )


def _complete(finished: Finished, stream: RequestStream) -> pb.GenerateComplete:
    """Write the end."""
    complete = pb.GenerateComplete(
        text="".join(stream.text_parts),
        output_ids=stream.output_ids,
        finish_reason=_REASONS[finished.reason],
        prompt_tokens=stream.prompt_tokens,
        completion_tokens=len(stream.output_ids),
        cached_tokens=finished.cached_tokens,
        chunk_tokens=finished.chunk_tokens,
        ttft_ms=stream.ttft_ms,
        e2e_ms=stream.e2e_ms,
    )
    if finished.matched_stop is not None:
        complete.matched_stop = finished.matched_stop
    if finished.matched_token_id is not None:
        complete.matched_token_id = finished.matched_token_id
    return complete


def _timing(timing: MicrobatchTiming) -> pb.MicrobatchTiming:
    """Write when the stages worked on one microbatch."""
    return pb.MicrobatchTiming(
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
    )
