"""What the door refuses costs nobody else anything: a healthy request behind it is answered."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest

from chunkmesh.v1 import generation_pb2 as pb
from stage_worker.model_stage import load_stage
from tests.bytes_tokenizer import write_bytes_folder
from tests.gate import Gate
from tests.mesh import mesh
from tests.random_ids import make_prompt
from tests.recorded_stage import RecordedStage
from tests.reference import Reference
from tests.tiny_models import make_tiny_llama

NEW_TOKENS = 4
PROMPT = make_prompt(10, seed=1)
REFUSED: Mapping[str, tuple[Mapping[str, Any], tuple[str, ...]]] = {
    "no tokens": ({"input_ids": pb.TokenIds()}, ("input_ids", "empty")),
    "no text": ({"text": ""}, ("text", "empty")),
    "stop id": (
        {"text": "x", "sampling_params": pb.SamplingParams(stop_token_ids=[151_645])},
        ("stop_token_ids", "151645", "vocabulary size 264"),
    ),
    "biased id": (
        {"text": "x", "sampling_params": pb.SamplingParams(logit_bias={300: -100})},
        ("logit_bias", "300", "vocabulary size 264"),
    ),
    "prompt over the pool": (
        {
            "input_ids": pb.TokenIds(ids=[65] * 150),
            "sampling_params": pb.SamplingParams(max_new_tokens=1),
        },
        ("prompt of 150 tokens", "10 pages", "the pool has 8"),
    ),
    "prompt and output over the pool": (
        {
            "input_ids": pb.TokenIds(ids=[65] * 120),
            "sampling_params": pb.SamplingParams(max_new_tokens=40),
        },
        ("max_new_tokens 40", "10 pages", "the pool has 8"),
    ),
}


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write a tiny Llama with the BYTES tokenizer and a context of 256 tokens."""
    folder = tmp_path_factory.mktemp("tiny")
    write_bytes_folder(folder)
    make_tiny_llama(folder, max_position_embeddings=256)
    return folder


@pytest.mark.parametrize("case", REFUSED)
async def test_o11_a_refusal_holds_nobody_up(tiny: Path, case: str) -> None:
    """Within a second, with field and limit; unseen by every stage, which it does not wait for."""
    fields, words = REFUSED[case]
    loaded = [load_stage(tiny, layers=layers) for layers in (range(2), range(2, 4))]
    gate = Gate()
    stages = [RecordedStage(stage, gate=gate) for stage in loaded]
    async with mesh(tiny, stages, kv_capacity_tokens=128) as running:
        refused = asyncio.ensure_future(running.generate(**fields))
        healthy = asyncio.ensure_future(
            running.generate(
                input_ids=pb.TokenIds(ids=PROMPT),
                sampling_params=pb.SamplingParams(
                    temperature=0, max_new_tokens=NEW_TOKENS, ignore_eos=True
                ),
            )
        )
        with pytest.raises(grpc.aio.AioRpcError) as refusal:
            async with asyncio.timeout(1.0):
                await refused
        gate.open()
        answer = await healthy
        await running.at_rest()
        snapshot = running.control_loop.engine.snapshot()
    assert refusal.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert all(word in str(refusal.value.details()) for word in words)
    assert Reference(tiny).generate(PROMPT, NEW_TOKENS) == list(answer.output_ids)
    for stage in stages:
        starts = [(each.start, each.num_tokens) for mb in stage.microbatches for each in mb.entries]
        assert starts == [(0, 10), (10, 1), (11, 1), (12, 1)]
    assert (8, 8) == (snapshot.num_pages, snapshot.num_free_pages)
