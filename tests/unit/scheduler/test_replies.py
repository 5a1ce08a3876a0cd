"""What a Generate call sends of one request with several outputs and log-probabilities."""

from __future__ import annotations

import itertools
from typing import Literal

import numpy as np
import pytest

from chunkmesh.errors import StageUnavailable
from chunkmesh.logprobs import TokenLogprobs
from chunkmesh.logprobs_codec import from_message
from chunkmesh.v1 import generation_pb2 as pb
from scheduler.actions import Finished, Output, Progress, PromptLogprobs
from scheduler.replies import MAX_PROMPT_PART_BYTES, prompt_parts, responses
from scheduler.request_stream import RequestStream
from scheduler.timeline import MicrobatchTiming

TIMING = MicrobatchTiming(
    epoch=1, seq_no=5, start=0, num_tokens=10, microbatch_tokens=10, stages=()
)


def new_stream(num_outputs: int = 1) -> RequestStream:
    """Return the stream of a request of ten tokens."""
    return RequestStream(prompt_tokens=10, arrived_s=100.0, num_outputs=num_outputs)


def logprobs_of(*values: float, num_top: int = 0) -> TokenLogprobs:
    """Return log-probabilities whose most likely ids are 0, 1, 2, ..."""
    num_tokens = len(values)
    top_ids_Tk = np.tile(np.arange(num_top, dtype=np.uint32), (num_tokens, 1))
    return TokenLogprobs(
        logprobs_T=np.array(values, dtype=np.float32),
        top_ids_Tk=top_ids_Tk,
        top_logprobs_Tk=-top_ids_Tk.astype(np.float32),
    )


def output(child: int, token_id: int, logprobs: TokenLogprobs | None = None) -> Output:
    """Return one token of an output, whose text is its letter."""
    return Output(
        request_id="r", child=child, token_ids=(token_id,), text=chr(token_id), logprobs=logprobs
    )


def finished(
    child: int, reason: Literal["stop", "length", "abort"] = "length", num_preemptions: int = 0
) -> Finished:
    """Return the end of an output."""
    return Finished(
        request_id="r",
        child=child,
        reason=reason,
        matched_stop=None,
        matched_token_id=None,
        cached_tokens=4,
        chunk_tokens=(6,),
        num_preemptions=num_preemptions,
    )


async def sent(stream: RequestStream, /, **request: bool) -> list[pb.GenerateResponse]:
    """Return all messages of a call whose request has ended."""
    call = responses(pb.GenerateRequest(**request), "r", stream, lambda: [TIMING])  # type: ignore[arg-type]
    return [response async for response in call]


async def test_every_output_has_chunks_and_an_end_of_its_own() -> None:
    """Outputs of one prompt come interleaved; the index tells them apart (O05)."""
    stream = new_stream(3)
    for child, letter in itertools.product(range(3), b"ab"):
        stream.output(output(child, letter + child), now_s=101.0)
    stream.finish(finished(0, "stop"))
    stream.finish(finished(2))
    stream.output(output(1, ord("z")), now_s=102.0)
    stream.finish(finished(1))
    messages = await sent(stream, stream=True, return_timeline=True)
    chunks = {each.chunk.index: each.chunk for each in messages if each.HasField("chunk")}
    completes = [each.complete for each in messages if each.HasField("complete")]
    assert {0: "ab", 1: "bcz", 2: "cd"} == {index: each.text for index, each in chunks.items()}
    assert [(0, "ab", 2), (1, "bcz", 3), (2, "cd", 2)] == sorted(
        (each.index, each.text, each.completion_tokens) for each in completes
    )
    reasons = {each.index: each.finish_reason for each in completes}
    assert {
        0: pb.FINISH_REASON_STOP,
        1: pb.FINISH_REASON_LENGTH,
        2: pb.FINISH_REASON_LENGTH,
    } == reasons
    assert messages[-1].HasField("complete")
    assert [0, 0, 1] == [len(each.timeline) for each in completes]
    assert {10} == {each.prompt_tokens for each in completes}


async def test_a_call_goes_on_after_the_first_output_has_ended() -> None:
    """The others must not be cut off (O05)."""
    stream = new_stream(2)
    call = responses(pb.GenerateRequest(), "r", stream, list)
    stream.finish(finished(0))
    first = await anext(call)
    stream.output(output(1, ord("x")), now_s=101.0)
    stream.finish(finished(1))
    rest = [response async for response in call]
    assert (0, [(1, "x")]) == (
        first.complete.index,
        [(each.complete.index, each.complete.text) for each in rest],
    )


async def test_chunks_count_the_tokens_that_were_sent() -> None:
    """What comes while a slow reader takes one message belongs to a later one."""
    stream = new_stream(2)
    for child in range(2):
        stream.output(output(child, 65), now_s=101.0)
    call = responses(pb.GenerateRequest(stream=True), "r", stream, list)
    counts = [(await anext(call)).chunk.completion_tokens]
    stream.output(output(1, 66), now_s=102.0)
    counts += [(await anext(call)).chunk.completion_tokens for _ in range(2)]
    await call.aclose()  # type: ignore[attr-defined]
    assert [1, 1, 2] == counts


async def test_output_logprobs_come_with_chunk_and_complete() -> None:
    """One for each id, in both; a client may read either."""
    stream = new_stream()
    stream.output(output(0, 65, logprobs_of(-0.5, num_top=2)), now_s=101.0)
    stream.output(output(0, 66, logprobs_of(-1.5, num_top=2)), now_s=102.0)
    stream.finish(finished(0))
    chunk, complete = await sent(stream, stream=True)
    assert chunk.chunk.logprobs == complete.complete.logprobs
    told = from_message(complete.complete.logprobs)
    assert [-0.5, -1.5] == told.logprobs_T.tolist()
    assert [[0, 1], [0, 1]] == told.top_ids_Tk.tolist()


async def test_without_logprobs_the_field_is_absent() -> None:
    """Zero log-probabilities and none at all are different answers."""
    stream = new_stream()
    stream.output(output(0, 65), now_s=101.0)
    stream.finish(finished(0))
    for message in await sent(stream, stream=True):
        event = message.chunk if message.HasField("chunk") else message.complete
        assert not event.HasField("logprobs")


async def test_text_without_a_token_is_sent_too() -> None:
    """An abort may release text that was held back: deltas must still join to the whole."""
    stream = new_stream()
    stream.output(output(0, 65), now_s=101.0)
    call = responses(pb.GenerateRequest(stream=True), "r", stream, list)
    assert "A" == (await anext(call)).chunk.text
    stream.output(Output(request_id="r", child=0, token_ids=(), text="held"), now_s=102.0)
    stream.finish(finished(0, "abort"))
    chunk, complete = [response async for response in call]
    assert ("held", "Aheld") == (chunk.chunk.text, complete.complete.text)


async def test_the_ends_that_came_before_a_failure_are_sent() -> None:
    """What is whole is the client's, also when a stage is lost behind it."""
    stream = new_stream(2)
    stream.finish(finished(1))
    stream.fail(StageUnavailable("a stage was lost"))
    call = responses(pb.GenerateRequest(), "r", stream, list)
    assert (await anext(call)).complete.index == 1
    with pytest.raises(StageUnavailable):
        await anext(call)
    assert stream.finish_reason == "StageUnavailable"


async def test_prompt_logprobs_come_before_output_and_end() -> None:
    """In order of positions, joined as far as they waited."""
    stream = new_stream()
    parts = (logprobs_of(-1, -2, -3, num_top=1), logprobs_of(-4, num_top=1))
    for start, logprobs in zip((1, 4), parts, strict=True):
        stream.prompt_logprobs(PromptLogprobs(request_id="r", start=start, logprobs=logprobs))
    stream.output(output(0, 65), now_s=101.0)
    stream.finish(finished(0))
    messages = await sent(stream)
    assert ["prompt_logprobs", "complete"] == [each.WhichOneof("event") for each in messages]
    part = messages[0].prompt_logprobs
    assert (1, [-1, -2, -3, -4]) == (part.start, list(part.logprobs.logprobs))


@pytest.mark.parametrize("num_top", [0, 1, 20])
def test_prompt_logprobs_are_cut_into_messages_that_any_client_takes(num_top: int) -> None:
    """Other makers' clients refuse 4 MiB; nothing may be lost at the cuts."""
    values = np.linspace(-9, 0, 600_000 if num_top == 0 else 100_000, dtype=np.float32)
    whole = logprobs_of(*values.tolist(), num_top=num_top)
    news = [
        PromptLogprobs(request_id="r", start=1, logprobs=whole),
        PromptLogprobs(
            request_id="r", start=1 + len(whole), logprobs=logprobs_of(-7.0, num_top=num_top)
        ),
    ]
    parts = list(prompt_parts(news))
    assert len(parts) > 1
    assert max(part.ByteSize() for part in parts) <= MAX_PROMPT_PART_BYTES + 64
    next_start = 1
    told = []
    for part in parts:
        assert part.start == next_start
        told.append(from_message(part.logprobs))
        next_start += len(told[-1])
        assert told[-1].top_ids_Tk.shape[1] == num_top
    expected = np.append(values, np.float32(-7))
    assert np.array_equal(expected, np.concatenate([each.logprobs_T for each in told]))


async def test_a_slow_reader_gets_fewer_and_larger_messages() -> None:
    """What waits for it is one piece of news an output, not one message a token."""
    stream = new_stream(2)
    for index in range(1000):
        stream.progress(
            Progress(
                request_id="r",
                total=10,
                cached=0,
                processed=index,
                chunk_index=index,
                chunks_planned=1000,
                eta_s=0.0,
            )
        )
        stream.output(output(index % 2, 65), now_s=101.0)
    stream.finish(finished(0))
    stream.finish(finished(1))
    messages = await sent(stream, stream=True, return_progress=True)
    assert ["progress", "chunk", "complete", "chunk", "complete"] == [
        each.WhichOneof("event") for each in messages
    ]
    assert 999 == messages[0].progress.processed


def test_times_are_those_of_each_output() -> None:
    """One slow output must not hide behind its siblings."""
    stream = new_stream(2)
    for child, times in enumerate(((101.0, 101.5, 102.5), (103.0, 103.25))):
        for now_s in times:
            stream.output(output(child, 65), now_s=now_s)
    first, second = stream.outputs
    assert (1000, 2500) == (first.ttft_ms, first.e2e_ms)
    assert (3000, 3250) == (second.ttft_ms, second.e2e_ms)
    assert (1000, 500) == (stream.ttft_ms, stream.itl_p50_ms)


def test_the_log_line_counts_the_prompt_once_and_all_outputs() -> None:
    """Usage is billed from it: n outputs are not n prompts."""
    stream = new_stream(2)
    for child, num_tokens in enumerate((3, 1)):
        for _ in range(num_tokens):
            stream.output(output(child, 65), now_s=101.0)
    stream.finish(finished(0, "stop", num_preemptions=2))
    assert stream.finish_reason == "gone"
    assert not stream.has_finished
    stream.finish(finished(1, "length", num_preemptions=1))
    assert stream.has_finished
    assert stream.summary() == {
        "prompt_tokens": 10,
        "hit_tokens": 4,
        "num_chunks": 1,
        "num_outputs": 2,
        "output_tokens": 4,
        "num_preemptions": 3,
        "ttft_ms": 1000.0,
        "itl_p50_ms": 0.0,
        "finish_reason": "length,stop",
    }
