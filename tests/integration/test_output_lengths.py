"""How long an output may be: one token, none, and what an absent limit means."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
import pytest

from chunkmesh.v1 import generation_pb2 as pb
from stage_worker.model_stage import ModelStage, load_stage
from tests.eventually import eventually
from tests.mesh import Mesh, mesh
from tests.random_ids import make_prompt
from tests.recorded_stage import RecordedStage
from tests.reference import Reference

PROMPT = make_prompt(20, seed=4)


@pytest.fixture
def loaded(tiny: Path) -> list[ModelStage]:
    """Load the tiny Llama as two stages."""
    return [load_stage(tiny, layers=layers) for layers in (range(2), range(2, 4))]


def request(**params: Any) -> dict[str, Any]:
    """Ask greedily for what follows the prompt, whatever the end tokens."""
    return {
        "input_ids": pb.TokenIds(ids=PROMPT),
        "sampling_params": pb.SamplingParams(temperature=0, ignore_eos=True, **params),
    }


async def at_rest(running: Mesh, loaded: list[ModelStage]) -> None:
    """Wait until nothing runs, and check that every page and row is free."""
    await running.at_rest()
    snapshot = running.control_loop.engine.snapshot()
    assert snapshot.num_pages == snapshot.num_free_pages
    await eventually(lambda: not any(stage._tables._rows for stage in loaded))


async def test_o04_one_new_token_takes_one_pass(tiny: Path, loaded: list[ModelStage]) -> None:
    """The prompt's own pass gives the token; a decode step behind it would be for nobody."""
    stages = [RecordedStage(stage) for stage in loaded]
    async with mesh(tiny, stages) as running:
        complete = await running.generate(**request(max_new_tokens=1))
        await at_rest(running, loaded)
    assert Reference(tiny).generate(PROMPT, 1) == list(complete.output_ids)
    assert pb.FINISH_REASON_LENGTH == complete.finish_reason
    for stage in stages:
        [microbatch] = stage.microbatches
        assert 20 == microbatch.num_tokens


async def test_o04_no_new_token_is_refused(tiny: Path, loaded: list[ModelStage]) -> None:
    """Zero is told apart from absent, and is nothing that a stage could be asked for."""
    stages = [RecordedStage(stage) for stage in loaded]
    async with mesh(tiny, stages) as running:
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.generate(**request(max_new_tokens=0))
        await at_rest(running, loaded)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert "max_new_tokens is 0, must be at least 1" in str(refused.value.details())
    assert [[], []] == [stage.microbatches for stage in stages]


async def test_o04_an_absent_length_is_the_documented_one(
    tiny: Path, loaded: list[ModelStage]
) -> None:
    """The proto promises 128."""
    async with mesh(tiny, loaded) as running:
        complete = await running.generate(**request())
        await at_rest(running, loaded)
    assert pb.FINISH_REASON_LENGTH == complete.finish_reason
    assert 128 == complete.completion_tokens == len(complete.output_ids)


async def test_o04_fifty_requests_of_one_token(tiny: Path, loaded: list[ModelStage]) -> None:
    """They end in the pass in which they begin, several in each, and leave nothing behind."""
    stages = [RecordedStage(stage) for stage in loaded]
    async with mesh(tiny, stages, enable_prefix_caching=False) as running:
        all_of_them = await asyncio.gather(
            *(running.generate(**request(max_new_tokens=1)) for _ in range(50))
        )
        await at_rest(running, loaded)
    [expected] = Reference(tiny).generate(PROMPT, 1)
    assert 50 * [[expected]] == [list(each.output_ids) for each in all_of_them]
    assert {pb.FINISH_REASON_LENGTH} == {each.finish_reason for each in all_of_them}
    for stage in stages:
        assert 50 * 20 == sum(each.num_tokens for each in stage.microbatches)
    assert 50 == sum(len(each.sampling) for each in stages[-1].microbatches)
