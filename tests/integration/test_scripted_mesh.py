"""The whole control path with scripted stages: text, stop strings, cancel, large messages."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TypeAlias

import grpc
import numpy as np
import psutil
import pytest

from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import EOS, write_bytes_folder
from tests.eventually import eventually
from tests.gate import Gate
from tests.mesh import PAGE_TOKENS, Mesh, mesh
from tests.recorded_stage import RecordedStage
from tests.scripted_stage import Script, ScriptedStage, scripted_stages

VictimCall: TypeAlias = "grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]"
PEPPER = [0x61, 0xF0, 0x9F, 0x8C, 0xB6, 0x62]


def folder(tmp_path: Path, num_layers: int, **config: int) -> Path:
    """Write a model folder for scripted stages."""
    return write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": num_layers} | config)


def params(seed: int, max_new_tokens: int = 64, **more: object) -> pb.SamplingParams:
    """Sample with a seed, by which scripts tell requests apart."""
    return pb.SamplingParams(seed=seed, max_new_tokens=max_new_tokens, **more)  # type: ignore[arg-type]


async def stream(running: Mesh, **request: object) -> tuple[list[str], pb.GenerateComplete]:
    """Run a streamed request; return its deltas and its end, whose ids are those streamed."""
    responses = await running.responses(stream=True, **request)
    complete = responses[-1].complete
    streamed_ids = [id_ for each in responses[:-1] for id_ in each.chunk.token_ids]
    assert list(complete.output_ids) == streamed_ids
    return [each.chunk.text for each in responses[:-1]], complete


async def test_o01_characters_over_several_tokens(tmp_path: Path) -> None:
    """A character whose bytes are several tokens must arrive whole, batched or not."""
    gate = Gate()
    script = Script(ids={1: [*PEPPER, EOS], 2: [0xC3, 0xA9, EOS]}, gate=gate)
    stages = scripted_stages(1, script)
    async with mesh(folder(tmp_path, 1), stages) as running:
        both = asyncio.gather(
            stream(running, text="one", sampling_params=params(1)),
            stream(running, text="two", sampling_params=params(2)),
        )
        await running.has_requests(2)
        gate.open()
        (deltas_a, a), (deltas_b, b) = await both
        assert any(len(each.entries) == 2 for each in stages[0].microbatches), "not batched"
        _, cut = await stream(running, text="three", sampling_params=params(1, 3))
        whole_a = await running.generate(text="four", sampling_params=params(1))
        whole_b = await running.generate(text="five", sampling_params=params(2))
    assert ("".join(deltas_a), a.text) == ("a\U0001f336b", "a\U0001f336b")
    assert not any("\ufffd" in delta for delta in deltas_a + deltas_b)
    assert [*PEPPER, EOS] == list(a.output_ids)
    assert ("".join(deltas_b), b.text) == ("\u00e9", "\u00e9")
    assert (a.text, b.text) == (whole_a.text, whole_b.text)
    assert (cut.finish_reason, cut.completion_tokens) == (pb.FINISH_REASON_LENGTH, 3)
    assert cut.text in {"a", "a\ufffd"}


@pytest.mark.parametrize(
    ("script_text", "stop", "text", "matched", "num_tokens"),
    [
        ("one two three four", ["two th"], "one ", "two th", 10),
        ("one two tides", ["two th"], "one two tides", "", 14),
        ("one two three four", ["two th", "two"], "one ", "two", 7),
    ],
)
async def test_o02_stop_strings_in_pieces(
    tmp_path: Path, script_text: str, stop: list[str], text: str, matched: str, num_tokens: int
) -> None:
    """No letter of a stop string may be sent, none of the text lost, no token made too many."""
    stages = scripted_stages(1, Script(ids={1: [*script_text.encode(), EOS]}))
    async with mesh(folder(tmp_path, 1), stages) as running:
        deltas, complete = await stream(running, text="x", sampling_params=params(1, stop=stop))
        await running.at_rest()
    assert (text, text) == ("".join(deltas), complete.text)
    assert (pb.FINISH_REASON_STOP, matched) == (complete.finish_reason, complete.matched_stop)
    assert num_tokens == complete.completion_tokens
    assert num_tokens == sum(len(each.sampling) for each in stages[0].microbatches)


async def test_o02_the_prompt_is_not_searched_for_stop_strings(tmp_path: Path) -> None:
    """A stop string begun in the prompt must not end the output."""
    script = Script(ids={1: [*b"o three", EOS]})
    async with mesh(folder(tmp_path, 1), scripted_stages(1, script)) as running:
        _, complete = await stream(
            running, text="count: tw", sampling_params=params(1, stop=["two"])
        )
    assert (complete.text, complete.matched_stop) == ("o three", "")


async def test_chunks_follow_each_other_through_the_stages(tmp_path: Path) -> None:
    """The point of the pipeline: a chunk enters the first stage while others are further down."""
    gate = Gate()
    stages = scripted_stages(3, Script(gate=gate))
    async with mesh(folder(tmp_path, 3), stages) as running:
        answer = asyncio.create_task(
            running.generate(
                input_ids=pb.TokenIds(ids=[65] * 640), sampling_params=params(1, max_new_tokens=1)
            )
        )
        await asyncio.to_thread(stages[0].wait_for, 3)
        assert [] == stages[2].microbatches
        gate.open()
        complete = await answer
        await running.at_rest()
    assert [64] * 10 == list(complete.chunk_tokens)


async def test_a_client_may_choose_its_chunks(tmp_path: Path) -> None:
    """Sizes are compared on a mesh that runs; what no microbatch can hold is refused."""
    stages = scripted_stages(2, Script())
    ids = pb.TokenIds(ids=[65] * 200)
    async with mesh(folder(tmp_path, 2), stages) as running:
        complete = await running.generate(
            input_ids=ids, sampling_params=params(1, 1), chunk_tokens=[50, 32]
        )
        assert [50, 32, 32, 32, 32, 22] == list(complete.chunk_tokens)
        assert [0, 50, 82, 114, 146, 178] == [
            entry.start for each in stages[1].microbatches for entry in each.entries
        ]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.generate(input_ids=ids, chunk_tokens=[65])
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "chunk_tokens[0] is 65, must be in [1, 64]" in str(refused.value.details())
        await running.at_rest()


def start_victim(running: Mesh, token_id: int = 65) -> VictimCall:
    """Start a request of 10 chunks of one token."""
    ids = pb.TokenIds(ids=np.full(640, token_id).tolist())
    return running.stub.Generate(pb.GenerateRequest(request_id="victim", input_ids=ids))


async def until_forgotten(stages: list[ScriptedStage]) -> None:
    """Wait until no stage knows a row."""
    async with asyncio.timeout(5):
        while any(stage.tables for stage in stages):
            await asyncio.sleep(0.001)


async def cancel_in_prefill(
    running: Mesh, stages: list[ScriptedStage], gate: Gate, token_id: int = 65
) -> None:
    """Cancel a request of 10 chunks once its third chunk has left the first stage.

    The last stage is held meanwhile, so that only what is in flight can be ahead of the cancel.
    """
    before = len(stages[0].microbatches)
    gate.close()
    call = start_victim(running, token_id)
    reading = asyncio.ensure_future(call.read())
    await asyncio.to_thread(stages[0].wait_for, before + 3)
    call.cancel()
    await asyncio.gather(reading, return_exceptions=True)
    await running.has_requests(0)
    in_flight = running.control_loop.engine.snapshot().num_in_flight
    gate.open()
    await running.at_rest()
    ran = len(stages[0].microbatches) - before
    assert ran < 10, "the rest of the prompt was computed for nobody"
    assert ran <= in_flight


async def test_o12_cancel_in_the_middle_of_a_chunked_prefill(tmp_path: Path) -> None:
    """Chunks in flight are dropped, none starts, pages come back once, the next is right."""
    gate = Gate()
    stages = scripted_stages(3, Script(ids={7: [*b"fine", EOS]}, gate=gate))
    async with mesh(folder(tmp_path, 3), stages) as running:
        await cancel_in_prefill(running, stages, gate)
        snapshot = running.control_loop.engine.snapshot()
        assert snapshot.num_pages == snapshot.num_free_pages
        complete = await running.generate(text="next", sampling_params=params(7))
        await running.at_rest()
        await until_forgotten(stages)
    assert complete.text == "fine"


async def test_o12_the_stages_are_told_once_and_pages_return_after_the_last_chunk(
    tmp_path: Path,
) -> None:
    """One decision, taken by the scheduler: no stage may run a chunk behind it, or forget twice."""
    gate = Gate()
    scripted = scripted_stages(3, Script(gate=gate))
    stages = [RecordedStage(stage) for stage in scripted]
    async with mesh(folder(tmp_path, 3), stages) as running:
        engine = running.control_loop.engine
        call = start_victim(running)
        await asyncio.to_thread(scripted[0].wait_for, 3)
        held = engine.snapshot()
        call.cancel()
        await running.has_requests(0)
        (num_sent,) = [route.microbatches.pipeline._num_sent for route in engine._routes]
        seen = []
        for num_left in range(engine.snapshot().num_in_flight, 0, -1):
            await eventually(lambda: engine.snapshot().num_in_flight == num_left)  # noqa: B023
            seen.append(engine.snapshot().num_free_pages)
            gate.let(1)
        assert seen == [held.num_free_pages] * num_sent, "a page came back before the last chunk"
        assert held.num_pages - held.num_free_pages >= 40
        await running.at_rest()
        await until_forgotten(scripted)
    runs = [("run", seq_no) for seq_no in range(num_sent)]
    assert 3 <= num_sent < 10
    for stage in stages:
        assert sorted(stage.told) == sorted([*runs, ("forget", 0)])
        assert [each for each in stage.told if each[0] == "run"] == runs
        assert stage.told[-1] == ("forget", 0)


async def test_o12_a_hundred_cancels_leave_nothing_behind(tmp_path: Path) -> None:
    """Pages, rows, streams and memory must be those of before."""
    gate = Gate()
    stages = scripted_stages(3, Script(gate=gate))
    process = psutil.Process()
    async with mesh(folder(tmp_path, 3), stages) as running:
        for index in range(40):
            await cancel_in_prefill(running, stages, gate, index)
        for stage in stages:
            stage.microbatches.clear()
        rss_before = process.memory_info().rss
        for index in range(40, 140):
            await cancel_in_prefill(running, stages, gate, index)
            for stage in stages:
                stage.microbatches.clear()
        rss_after = process.memory_info().rss
        snapshot = running.control_loop.engine.snapshot()
        assert snapshot.num_pages == snapshot.num_free_pages
        assert [stage.tables for stage in stages] == [{}, {}, {}]
    assert rss_after < 1.01 * rss_before


async def test_o23_the_smallest_pool_counts_for_all_stages(tmp_path: Path) -> None:
    """A page id is one on every stage; none may be beyond what a stage has."""
    stages = scripted_stages(3, Script())
    capacities = [40 * PAGE_TOKENS, 34 * PAGE_TOKENS, 37 * PAGE_TOKENS]
    async with mesh(folder(tmp_path, 3), stages, kv_capacity_tokens=capacities) as running:
        assert running.control_loop.engine.snapshot().num_pages == 34
        requests = (
            running.generate(
                input_ids=pb.TokenIds(ids=[65 + index] * 100), sampling_params=params(index, 8)
            )
            for index in range(10)
        )
        ends = await asyncio.gather(*requests)
        await running.at_rest()
    assert [end.completion_tokens for end in ends] == [8] * 10
    for stage in stages:
        entries = [entry for each in stage.microbatches for entry in each.entries]
        assert {page for entry in entries for page in entry.new_page_ids} == set(range(34))


@pytest.mark.timeout(300)
async def test_o14_a_million_tokens_pass_the_door(tmp_path: Path) -> None:
    """Messages beyond gRPC's default of 4 MiB must be judged by tokens, not by the transport."""
    model = folder(tmp_path, 1, vocab_size=152_064, max_position_embeddings=2_000_000)
    stages = scripted_stages(1, Script())
    async with mesh(
        model,
        stages,
        kv_capacity_tokens=1 << 21,
        page_size=1024,
        chunked_prefill_size=1 << 16,
    ) as running:
        ids = pb.TokenIds(ids=[151_935] * 1_398_102)
        assert ids.ByteSize() > 4_194_306
        complete = await running.generate(input_ids=ids, sampling_params=params(1, 1))
        assert (complete.prompt_tokens, complete.completion_tokens) == (1_398_102, 1)
        ids_le = np.full(1_398_102, 151_935, dtype="<u4").tobytes()
        complete = await running.generate(input_ids_le=ids_le, sampling_params=params(1, 1))
        assert complete.prompt_tokens == 1_398_102
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.generate(text="x" * 4_194_305, sampling_params=params(1, 1))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert "4194306 tokens" in str(refused.value.details())
        assert "2000000" in str(refused.value.details())
