"""GetTimelines: what the scheduler remembers of the last requests, with scripted stages."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import grpc
import pytest

from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import write_bytes_folder
from tests.eventually import eventually
from tests.gate import Gate
from tests.mesh import CHUNK_TOKENS, Mesh, mesh
from tests.scripted_stage import Script, ScriptedStage, scripted_stages

NUM_STAGES = 3


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Write a model folder for scripted stages."""
    return write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": NUM_STAGES})


@pytest.fixture
def stages() -> list[ScriptedStage]:
    """Make stages that take some milliseconds."""
    return scripted_stages(NUM_STAGES, Script(delay_s=0.005))


async def ask(running: Mesh, request_id: str, num_tokens: int, num_new: int = 3) -> None:
    """Run a request that does not ask for its timeline."""
    await running.generate(
        request_id=request_id,
        input_ids=pb.TokenIds(ids=[65] * num_tokens),
        sampling_params=pb.SamplingParams(max_new_tokens=num_new, ignore_eos=True),
    )


async def timelines(
    running: Mesh, *request_ids: str, last: int = 0
) -> list[pb.GetTimelinesResponse]:
    """Ask for what is kept."""
    request = pb.GetTimelinesRequest(request_ids=request_ids, last=last)
    return [each async for each in running.stub.GetTimelines(request, timeout=10)]


async def test_every_microbatch_is_on_each_stage_in_order(
    folder: Path, stages: list[ScriptedStage]
) -> None:
    """A trace with a hole, or with two microbatches at once on a stage, would explain nothing."""
    async with mesh(folder, stages) as running:
        await asyncio.gather(ask(running, "long", 5 * CHUNK_TOKENS), ask(running, "short", 70))
        await running.at_rest()
        long, short = sorted(await timelines(running), key=lambda each: each.request_id)
    assert [64] * 5 + [1, 1] == [each.num_tokens for each in long.microbatches]
    assert [64 * n for n in range(5)] + [320, 321] == [each.start for each in long.microbatches]
    assert 70 == sum(each.num_tokens for each in short.microbatches if each.start < 70)
    assert (7, 3, 320, 0) == (
        long.num_parts,
        long.output_tokens,
        long.prompt_tokens,
        long.cached_tokens,
    )
    assert "length" == long.finish_reason
    check_stages([long, short])


def check_stages(told: list[pb.GetTimelinesResponse]) -> None:
    """Assert that each stage ran all microbatches, one after the other, behind the one before."""
    begun_us: dict[int, list[tuple[int, int, int]]] = {stage: [] for stage in range(NUM_STAGES)}
    for timeline in told:
        for microbatch in timeline.microbatches:
            assert list(range(NUM_STAGES)) == [each.stage_index for each in microbatch.stages]
            for before, after in itertools.pairwise(microbatch.stages):
                assert before.start_us <= after.start_us
            for stage in microbatch.stages:
                start_us = timeline.arrived_us + stage.start_us
                span = (microbatch.seq_no, start_us, start_us + stage.compute_us)
                begun_us[stage.stage_index].append(span)
    for spans in begun_us.values():
        in_order = sorted(set(spans))
        assert len({seq_no for seq_no, _, _ in in_order}) == len(in_order), "two times for one"
        for (_, _, end_us), (_, start_us, _) in itertools.pairwise(in_order):
            assert end_us <= start_us + 1, "two microbatches at once on a stage"


async def test_times_agree_with_what_the_client_is_told(
    folder: Path, stages: list[ScriptedStage]
) -> None:
    """One recorder: return_timeline and a later question give the same."""
    async with mesh(folder, stages) as running:
        complete = await running.generate(
            request_id="a",
            text="x" * 200,
            sampling_params=pb.SamplingParams(max_new_tokens=2),
            return_timeline=True,
        )
        await running.at_rest()
        (told,) = await timelines(running, "a")
    assert [each.seq_no for each in complete.timeline] == [
        each.seq_no for each in told.microbatches
    ]
    assert [(each.start, each.num_tokens) for each in complete.timeline] == [
        (each.start, each.num_tokens) for each in told.microbatches
    ]
    assert told.first_token_us == pytest.approx(1000 * complete.ttft_ms, abs=1)
    assert told.first_token_us < told.ended_us <= told.now_us - told.arrived_us


async def test_a_running_request_is_told_too(folder: Path) -> None:
    """A prompt that takes minutes is looked at while it runs."""
    gate = Gate()
    stages = scripted_stages(NUM_STAGES, Script(gate=gate))
    async with mesh(folder, stages) as running:
        request = asyncio.create_task(ask(running, "slow", 10 * CHUNK_TOKENS))
        gate.let(2)
        told = await until_told(running, "slow", 2)
        gate.open()
        await request
    assert not told.HasField("ended_us")
    assert not told.HasField("first_token_us")
    assert "" == told.finish_reason
    assert 2 <= len(told.microbatches) < 10
    assert [NUM_STAGES] * 2 == [len(each.stages) for each in told.microbatches[:2]]


async def until_told(
    running: Mesh, request_id: str, num_microbatches: int
) -> pb.GetTimelinesResponse:
    """Return the timeline of a request that runs, once all stages have run so many microbatches."""
    told: list[pb.GetTimelinesResponse] = []

    async def has_them() -> bool:
        told[:] = await timelines(running, request_id) if len(running.control_loop.requests) else []
        ran = [each for one in told for each in one.microbatches if len(each.stages) == NUM_STAGES]
        return len(ran) >= num_microbatches

    await eventually(has_them)
    return told[0]


async def test_how_a_request_ended_is_told(folder: Path) -> None:
    """Those that did not end well are looked at first."""
    gate = Gate()
    stages = scripted_stages(NUM_STAGES, Script(gate=gate))
    async with mesh(folder, stages) as running:
        for request_id in ("gone", "aborted"):
            gate.let(1)
            ids = pb.TokenIds(ids=[65] * 640)
            call = running.stub.Generate(pb.GenerateRequest(request_id=request_id, input_ids=ids))
            reading = asyncio.ensure_future(call.read())
            await until_told(running, request_id, 1)
            if request_id == "aborted":
                await running.stub.Abort(pb.AbortRequest(request_id=request_id))
            else:
                call.cancel()
            await asyncio.gather(reading, return_exceptions=True)
            await running.has_requests(0)
            gate.open()
            await running.at_rest()
        told = await timelines(running)
    assert [("gone", "gone"), ("aborted", "abort")] == [
        (each.request_id, each.finish_reason) for each in told
    ]
    assert all(each.microbatches for each in told)


async def test_the_last_are_kept_and_an_unknown_one_is_refused(
    folder: Path, stages: list[ScriptedStage]
) -> None:
    """Bounded, by arrival, and an id that is not there is an error with a reason."""
    async with mesh(folder, stages) as running:
        for index in range(40):
            await ask(running, f"r{index}", 5, 1)
        told = await timelines(running)
        assert [f"r{index}" for index in range(8, 40)] == [each.request_id for each in told]
        told = await timelines(running, last=2)
        assert ["r38", "r39"] == [each.request_id for each in told]
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await timelines(running, "r7")
    assert grpc.StatusCode.INVALID_ARGUMENT is refused.value.code()
    assert "no timeline of request 'r7' is kept" in str(refused.value.details())
