"""Whole meshes whose last stage plays given logits: several outputs, seeds, log-probabilities."""

from __future__ import annotations

import asyncio
import contextlib
import math
import urllib.request
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
import torch
from prometheus_client.parser import text_string_to_metric_families

from chunkmesh.logprobs_codec import from_message
from chunkmesh.v1 import generation_pb2 as pb
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from tests.bytes_tokenizer import EOS, write_bytes_folder
from tests.eventually import eventually
from tests.gate import Gate
from tests.mesh import Mesh, mesh
from tests.scripted_stage import Script, ScriptedStage, logits_row, scripted_stages
from tests.valkey import running_valkey

EIGHT_ALIKE = logits_row(dict.fromkeys(range(65, 73), 0.0))
FOUR = logits_row({65: 1.0, 66: 0.0, 67: -1.0, 68: -2.0}, others=-1e9)
FOUR_LOGPROBS = (-0.4402, -1.4402, -2.4402, -3.4402)


@contextlib.asynccontextmanager
async def scripted(
    tmp_path: Path, script: Script, num_stages: int = 1, **settings: Any
) -> AsyncIterator[tuple[Mesh, list[ScriptedStage]]]:
    """Run a mesh of scripted stages; at the end nothing is left of any request."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": num_stages})
    stages = scripted_stages(num_stages, script)
    async with mesh(folder, stages, **settings) as running:
        yield running, stages
        await running.at_rest()


def request(
    seed: int | None, *, text: str = "a prompt", stream: bool = False, **params: Any
) -> dict[str, Any]:
    """Return the fields of a request."""
    return {
        "text": text,
        "stream": stream,
        "sampling_params": pb.SamplingParams(seed=seed, **params),
    }


async def outputs(running: Mesh, **fields: Any) -> dict[int, pb.GenerateComplete]:
    """Run a request and return the ends of its outputs by index, checked against its chunks."""
    responses = await running.responses(**fields)
    ends = {each.complete.index: each.complete for each in responses if each.HasField("complete")}
    assert responses[-1].HasField("complete")
    if fields["stream"]:
        for index, end in ends.items():
            chunks = [
                each.chunk
                for each in responses
                if each.HasField("chunk") and each.chunk.index == index
            ]
            assert end.text == "".join(chunk.text for chunk in chunks)
            assert list(end.output_ids) == [id_ for chunk in chunks for id_ in chunk.token_ids]
    return ends


async def counters(running: Mesh) -> dict[str, float]:
    """Read the counters of /metrics, labels summed up."""

    def read() -> str:
        url = f"http://{running.http_address}/metrics"
        with urllib.request.urlopen(url, timeout=5) as answer:
            text: str = answer.read().decode()
            return text

    values: dict[str, float] = {}
    for family in text_string_to_metric_families(await asyncio.to_thread(read)):
        for sample in family.samples:
            if sample.name.startswith("chunkmesh_") and sample.name.endswith("_total"):
                name = sample.name.removeprefix("chunkmesh_").removesuffix("_total")
                values[name] = values.get(name, 0.0) + sample.value
    return values


def prefilled_tokens(stage: ScriptedStage) -> int:
    """Return how many tokens a stage has computed in parts longer than a decode step."""
    return sum(
        entry.num_tokens
        for microbatch in stage.microbatches
        for entry in microbatch.entries
        if entry.num_tokens > 1
    )


async def test_o05_outputs_of_one_seed_differ_and_repeat(tmp_path: Path) -> None:
    """Each output has random numbers of its own; the same call gives the same ones again."""
    asked = request(7, stream=True, n=3, temperature=1.0, max_new_tokens=24)
    async with scripted(tmp_path, Script(logits={7: [EIGHT_ALIKE]})) as (running, stages):
        before = await counters(running)
        first = await outputs(running, **asked)
        await running.at_rest()
        after = await counters(running)
        assert len(b"a prompt") + 1 == prefilled_tokens(stages[0])
        second = await outputs(running, **asked)
    assert [0, 1, 2] == sorted(first)
    assert {pb.FINISH_REASON_LENGTH} == {end.finish_reason for end in first.values()}
    assert {24} == {end.completion_tokens for end in first.values()}
    texts = [first[index].text for index in range(3)]
    assert len(set(texts)) == 3
    assert texts == [second[index].text for index in range(3)]
    told = {name: after[name] - before[name] for name in ("prompt_tokens", "output_tokens")}
    assert told == {"prompt_tokens": 9, "output_tokens": 72}
    assert {9} == {end.prompt_tokens for end in first.values()}


@pytest.mark.parametrize("stream", [True, False])
async def test_o05_outputs_go_on_after_the_first_has_ended(tmp_path: Path, stream: bool) -> None:
    """One that ends early must not end or hold up the others."""
    script = Script(ids={(7, 0): [65, EOS]}, logits={7: [EIGHT_ALIKE]})
    async with scripted(tmp_path, script, num_stages=2) as (running, _):
        ends = await outputs(running, **request(7, stream=stream, n=3, max_new_tokens=24))
    assert [2, 24, 24] == [ends[index].completion_tokens for index in range(3)]
    assert [pb.FINISH_REASON_STOP, pb.FINISH_REASON_LENGTH, pb.FINISH_REASON_LENGTH] == [
        ends[index].finish_reason for index in range(3)
    ]
    assert ends[0].text == "A"


async def test_an_abort_ends_every_output(tmp_path: Path) -> None:
    """Each one that runs gets an end of its own, and the call ends."""
    script = Script(logits={7: [EIGHT_ALIKE]}, ids={(7, 1): [65, EOS]}, delay_s=0.02)
    async with scripted(tmp_path, script) as (running, _):
        fields = request(7, stream=True, n=3, max_new_tokens=500)
        call = running.stub.Generate(pb.GenerateRequest(request_id="r", **fields), timeout=20)
        reasons = {}
        async for response in call:
            if response.HasField("complete"):
                reasons[response.complete.index] = response.complete.finish_reason
                if len(reasons) == 1:
                    await running.stub.Abort(pb.AbortRequest(request_id="r"))
    assert {
        0: pb.FINISH_REASON_ABORT,
        1: pb.FINISH_REASON_STOP,
        2: pb.FINISH_REASON_ABORT,
    } == reasons


async def test_o06_a_seed_holds_beside_a_request_without_one(tmp_path: Path) -> None:
    """A row draws its own random numbers, whoever shares its batch."""
    gate = Gate()
    script = Script(logits={42: [EIGHT_ALIKE]}, otherwise_logits=EIGHT_ALIKE, gate=gate)
    seeded = request(42, temperature=0.8, max_new_tokens=16)
    async with scripted(tmp_path, script) as (running, stages):

        async def both(other_seed: int | None, *, other_first: bool = False) -> list[list[int]]:
            other = request(other_seed, temperature=0.8, max_new_tokens=16)
            pair = (other, seeded) if other_first else (seeded, other)
            gate.close()
            both = asyncio.gather(*(running.generate(**fields) for fields in pair))
            await running.has_requests(2)
            gate.open()
            ends = await both
            ids = [list(end.output_ids) for end in ends]
            return ids[::-1] if other_first else ids

        gate.open()
        alone = list((await running.generate(**seeded)).output_ids)
        runs = [await both(None) for _ in range(4)]
        runs += [await both(7), await both(None, other_first=True)]
        assert any(len(each.sampling) == 2 for each in stages[0].microbatches), "not batched"
    assert [alone] * 6 == [mine for mine, _ in runs]
    assert len({tuple(other) for _, other in runs[:4]}) >= 2


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize(
    "params",
    [
        {"temperature": 1.0},
        {"temperature": 0.5, "top_p": 0.9},
        {"temperature": 0.0},
        {"temperature": 0.01, "top_k": 1},
        {"temperature": 1.0, "repetition_penalty": 1.5, "logit_bias": {67: 5.0}},
    ],
)
async def test_o07_logprobs_are_of_the_model_alone(
    tmp_path: Path, params: dict[str, Any], stream: bool
) -> None:
    """One rule for every way to choose: before penalties, bias, temperature and filters."""
    asked = request(1, stream=stream, logprobs=True, top_logprobs=4, max_new_tokens=3, **params)
    async with scripted(tmp_path, Script(logits={1: [FOUR]})) as (running, _):
        responses = await running.responses(**asked)
    complete = responses[-1].complete
    parts = [from_message(complete.logprobs)]
    if stream:
        chunks = [each.chunk for each in responses if each.HasField("chunk")]
        assert [len(each.token_ids) for each in chunks] == [
            len(each.logprobs.logprobs) for each in chunks
        ]
        parts += [from_message(chunk.logprobs) for chunk in chunks]
    for part in parts:
        for top_ids, top in zip(part.top_ids_Tk, part.top_logprobs_Tk, strict=True):
            assert [65, 66, 67, 68] == top_ids.tolist()
            assert pytest.approx(FOUR_LOGPROBS, abs=1e-4) == top.tolist()
    expected = [FOUR_LOGPROBS[token_id - 65] for token_id in complete.output_ids]
    assert pytest.approx(expected, abs=1e-4) == list(complete.logprobs.logprobs)


async def test_o07_what_the_model_rules_out_is_finite(tmp_path: Path) -> None:
    """Minus infinity cannot be written as JSON."""
    row = logits_row({65: 0.0}, others=-math.inf)
    asked = request(1, logprobs=True, top_logprobs=3, max_new_tokens=1)
    async with scripted(tmp_path, Script(logits={1: [row]})) as (running, _):
        told = from_message((await running.generate(**asked)).logprobs)
    assert [0.0] == told.logprobs_T.tolist()
    assert np.isfinite(told.top_logprobs_Tk).all()


async def test_o07_prompt_logprobs_come_for_every_token_but_the_first(tmp_path: Path) -> None:
    """In parts without a gap over all chunks, and nothing of the output's is told unasked."""
    script = Script(prompt_logits=FOUR)
    prompt = "ABCD" * 40
    fields = request(
        1, text=prompt, prompt_logprobs=True, top_logprobs=2, n=2, temperature=0.0, max_new_tokens=1
    )
    async with scripted(tmp_path, script, num_stages=2) as (running, _):
        responses = await running.responses(**fields)
    parts = [each.prompt_logprobs for each in responses if each.HasField("prompt_logprobs")]
    ends = [each.complete for each in responses if each.HasField("complete")]
    starts = [part.start for part in parts]
    lengths = [len(part.logprobs.logprobs) for part in parts]
    assert starts == [1 + sum(lengths[:index]) for index in range(len(parts))]
    assert len(prompt) == sum(lengths)
    told = [value for part in parts for value in part.logprobs.logprobs]
    assert pytest.approx(FOUR_LOGPROBS * 40, abs=1e-4) == told
    assert {2} == {part.logprobs.num_top for part in parts}
    assert [False, False] == [end.HasField("logprobs") for end in ends]


HALF = logits_row({65: 20.0, 66: 19.0}, others=0.0, dtype=torch.float16)


@pytest.mark.parametrize(
    "params",
    [
        *({"temperature": value} for value in (0.0, 1e-6, 1e-5, 1e-4, 1e-3)),
        {"temperature": 1.0, "top_k": 1},
    ],
)
async def test_o08_tiny_temperatures_take_the_best(tmp_path: Path, params: Any) -> None:
    """20 / 1e-4 is beyond half precision; neither id 0 nor NaN may come of it."""
    async with scripted(tmp_path, Script(logits={1: [HALF]})) as (running, _):
        complete = await running.generate(**request(1, max_new_tokens=8, **params))
    assert [65] * 8 == list(complete.output_ids)


@pytest.mark.parametrize("top_k", [None, 1, 264, 265, 9_999_999])
async def test_o08_top_k_beyond_the_row_and_a_greedy_mate(
    tmp_path: Path, top_k: int | None
) -> None:
    """Values above the vocabulary are clamped; a greedy row in the batch stays greedy."""
    gate = Gate()
    script = Script(logits={1: [HALF], 2: [HALF]}, gate=gate)
    more: dict[str, Any] = {} if top_k is None else {"top_k": top_k}
    async with scripted(tmp_path, script) as (running, stages):
        both = asyncio.gather(
            running.generate(**request(1, temperature=1.0, max_new_tokens=16, **more)),
            running.generate(**request(2, temperature=0.0, max_new_tokens=16)),
        )
        await running.has_requests(2)
        gate.open()
        sampled, greedy = await both
        assert any(len(each.sampling) == 2 for each in stages[0].microbatches), "not batched"
    assert [65] * 16 == list(greedy.output_ids)
    assert 16 == sampled.completion_tokens
    assert {65} >= set(sampled.output_ids) if top_k == 1 else {65, 66} >= set(sampled.output_ids)


@pytest.mark.parametrize("temperature", [-0.1, math.nan])
async def test_o08_an_impossible_temperature_is_refused(tmp_path: Path, temperature: float) -> None:
    """No stage hears of it."""
    async with scripted(tmp_path, Script()) as (running, stages):
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await running.generate(**request(1, temperature=temperature))
        assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert [] == stages[0].microbatches


async def test_o09_a_repetition_penalty_counts_the_cached_prompt(tmp_path: Path) -> None:
    """66 wins only if 65, which stands in the first page, is known to have been said."""
    row = logits_row({65: 3.0, 66: 2.9, 67: -1.0, 68: -1.2})
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 2})
    fields = {
        "input_ids": pb.TokenIds(ids=[65, 67, *range(1, 39)]),
        "sampling_params": pb.SamplingParams(
            seed=1, temperature=0.0, repetition_penalty=1.3, max_new_tokens=1
        ),
    }
    with running_valkey(tmp_path) as valkey:
        settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
        async with (
            hicache_running(settings, ping_s=0.05) as address,
            mesh(
                folder,
                scripted_stages(2, Script(logits={1: [row]})),
                redis_url=valkey.url,
                hicache_url=address,
            ) as running,
        ):
            cold = await running.generate(**fields)
            await running.at_rest()
            warm = await running.generate(**fields)
            await running.at_rest()
            await running.stub.FlushCache(pb.FlushCacheRequest())
            cleared = await running.generate(**fields)
    assert [0, 32, 0] == [end.cached_tokens for end in (cold, warm, cleared)]
    assert [[66]] * 3 == [list(end.output_ids) for end in (cold, warm, cleared)]


async def test_preemptions_are_told_where_they_are_looked_for(tmp_path: Path) -> None:
    """An operator sees that the pool is too small, a client why its output was late."""
    gate = Gate()
    script = Script(logits={1: [EIGHT_ALIKE], 2: [EIGHT_ALIKE]}, gate=gate)
    async with scripted(tmp_path, script, kv_capacity_tokens=128) as (running, _):
        before = (await counters(running))["preemptions"]
        pair = [request(seed, text="x" * 30, max_new_tokens=80) for seed in (1, 2)]
        both = asyncio.gather(*(running.generate(**fields) for fields in pair))
        await running.has_requests(2)
        gate.open()
        ends = await both
        info = await running.stub.GetServerInfo(pb.GetServerInfoRequest())

        async def are_counted() -> bool:
            return (await counters(running))["preemptions"] - before >= info.num_preemptions

        await eventually(are_counted)
        after = (await counters(running))["preemptions"]
    told = sum(end.num_preemptions for end in ends)
    assert told >= 1
    assert told == info.num_preemptions == after - before
    assert [80, 80] == [end.completion_tokens for end in ends]


async def test_logits_that_are_no_numbers_fail_only_their_request(tmp_path: Path) -> None:
    """A prompt that overflows a narrow type must end with an error, not with a stage or a token."""
    broken, sound = logits_row({70: math.nan}), logits_row({65: 1.0})
    script = Script(logits={1: [sound, broken], 2: [sound] * 20})
    async with scripted(tmp_path, script, num_stages=2) as (running, _stages):
        mate = asyncio.create_task(running.generate(**request(2, temperature=0, max_new_tokens=20)))
        with pytest.raises(grpc.aio.AioRpcError) as failure:
            await running.generate(**request(1, temperature=0, n=2, max_new_tokens=20))
        assert failure.value.code() is grpc.StatusCode.INTERNAL
        assert "logits are no numbers" in str(failure.value.details())
        assert list((await mate).output_ids) == [65] * 20
        assert not running.control_loop.unready_reason()
