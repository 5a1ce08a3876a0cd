"""Requests that no mesh can run are refused at the door, with the value and the limit."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import mesh
from tests.scripted_stage import Script, scripted_stages

VOCAB = 264
CONTEXT = 256
BAD: list[tuple[Mapping[str, Any], str, tuple[str, ...]]] = [
    ({}, "input", ("no prompt",)),
    ({"text": ""}, "text", ("empty",)),
    ({"input_ids": pb.TokenIds()}, "input_ids", ("empty", "1")),
    ({"input_ids": pb.TokenIds(ids=[VOCAB])}, "input_ids", ("264", "vocabulary size 264")),
    ({"input_ids_le": b"\x01\x00\x00"}, "input_ids_le", ("3 bytes", "multiple of 4")),
    ({"text": "x" * 300}, "text", ("301 tokens", "256")),
    ({"chat": pb.Chat()}, "chat", ("message",)),
    ({"text": "x", "request_id": "r" * 129}, "request_id", ("129", "128")),
    ({"temperature": -1.0}, "sampling_params.temperature", ("-1", ">= 0")),
    ({"temperature": float("nan")}, "sampling_params.temperature", ("nan",)),
    ({"top_p": 0.0}, "sampling_params.top_p", ("0", "at most 1")),
    ({"min_p": 2.0}, "sampling_params.min_p", ("2", "1")),
    ({"max_new_tokens": 0}, "sampling_params.max_new_tokens", ("0", "at least 1")),
    ({"min_new_tokens": 9, "max_new_tokens": 8}, "sampling_params.min_new_tokens", ("9", "8")),
    ({"stop": [""]}, "sampling_params.stop", ("0 characters",)),
    ({"stop_token_ids": [151_645]}, "sampling_params.stop_token_ids", ("151645", "264")),
    ({"logit_bias": {300: -100.0}}, "sampling_params.logit_bias", ("300", "264")),
    ({"logit_bias": {65: float("nan")}}, "sampling_params.logit_bias", ("65", "nan", "100")),
    ({"frequency_penalty": 3.0}, "sampling_params.frequency_penalty", ("3", "-2 to 2")),
    ({"presence_penalty": float("inf")}, "sampling_params.presence_penalty", ("inf", "-2 to 2")),
    ({"repetition_penalty": -1.0}, "sampling_params.repetition_penalty", ("-1", "at most 10")),
    ({"n": 0}, "sampling_params.n", ("0", "1 to 128")),
    ({"top_logprobs": 5}, "sampling_params.top_logprobs", ("5", "logprobs")),
    ({"logprobs": True, "top_logprobs": 21}, "sampling_params.top_logprobs", ("21", "20")),
    (
        {
            "chat": pb.Chat(
                messages=[pb.ChatMessage(role="user", content="x")],
                add_generation_prompt=True,
                continue_final_message=True,
            )
        },
        "chat.continue_final_message",
        ("add_generation_prompt", "at most 1"),
    ),
]


def request_from(fields: Mapping[str, Any]) -> pb.GenerateRequest:
    """Make a request; fields of SamplingParams are told by their names."""
    params = {k: v for k, v in fields.items() if k in pb.SamplingParams.DESCRIPTOR.fields_by_name}
    rest = {k: v for k, v in fields.items() if k not in params}
    if params:
        rest = {"text": "x", "sampling_params": pb.SamplingParams(**params)}
    return pb.GenerateRequest(**rest)


async def test_bad_requests_are_refused_and_harm_nobody(tmp_path: Path) -> None:
    """Each refusal names field, value and limit; no stage hears of it; the next one is served."""
    folder = write_bytes_folder(
        tmp_path / "m", config={"num_hidden_layers": 2, "max_position_embeddings": CONTEXT}
    )
    stages = scripted_stages(2, Script())
    async with mesh(folder, stages, kv_capacity_tokens=128) as running:
        for fields, field, words in BAD:
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await running.stub.Generate(request_from(fields), timeout=5).read()
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT, fields
            assert field == violated_field(refused.value), fields
            for word in words:
                assert word in str(refused.value.details()), fields
        assert [] == stages[0].microbatches
        healthy = await running.generate(
            text="healthy", sampling_params=pb.SamplingParams(max_new_tokens=2)
        )
        assert 2 == healthy.completion_tokens
        await running.at_rest()


async def test_a_prompt_over_the_kv_pool_is_refused_with_both_sizes(tmp_path: Path) -> None:
    """A request that could never get its pages must not stand in the queue for ever."""
    folder = write_bytes_folder(
        tmp_path / "m", config={"num_hidden_layers": 2, "max_position_embeddings": CONTEXT}
    )
    stages = scripted_stages(2, Script())
    async with mesh(folder, stages, kv_capacity_tokens=128) as running:
        for prompt_tokens, max_new_tokens in ((150, 8), (120, 40)):
            request = pb.GenerateRequest(
                input_ids=pb.TokenIds(ids=[65] * prompt_tokens),
                sampling_params=pb.SamplingParams(max_new_tokens=max_new_tokens),
            )
            with pytest.raises(grpc.aio.AioRpcError) as refused:
                await running.stub.Generate(request, timeout=5).read()
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
            assert "10 pages" in str(refused.value.details())
            assert "8" in str(refused.value.details())
        assert [] == stages[0].microbatches
        short = await running.generate(
            input_ids=pb.TokenIds(ids=[65] * 120), sampling_params={"ignore_eos": True}
        )
        assert 9 == short.completion_tokens, "the default is cut to what the pool can hold"
        await running.at_rest()


async def test_a_running_request_id_is_refused(tmp_path: Path) -> None:
    """Two requests of one id could not be told apart by Abort."""
    folder = write_bytes_folder(tmp_path / "m", config={"num_hidden_layers": 1})
    stages = scripted_stages(1, Script(delay_s=0.01))
    async with mesh(folder, stages) as running:
        request = pb.GenerateRequest(
            text="x",
            request_id="same",
            stream=True,
            sampling_params=pb.SamplingParams(max_new_tokens=200),
        )
        first = aiter(running.stub.Generate(request, timeout=20))
        await anext(first)
        with pytest.raises(grpc.aio.AioRpcError, match="same"):
            await running.stub.Generate(request, timeout=5).read()
        found = await running.stub.Abort(pb.AbortRequest(request_id="same"))
        assert found.found
        *_, last = [response async for response in first]
        assert pb.FINISH_REASON_ABORT == last.complete.finish_reason
        gone = await running.stub.Abort(pb.AbortRequest(request_id="same"))
        assert not gone.found
        await running.at_rest()


async def test_weights_that_change_while_a_prompt_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Pages of new weights must never be stored under the keys of the old ones."""
    folder = write_bytes_folder(tmp_path / "m", config={"num_hidden_layers": 1})
    stages = scripted_stages(1, Script())
    async with mesh(folder, stages) as running:
        digests = iter((b"old" * 10, b"new" * 10))
        workers = running.control_loop.workers
        monkeypatch.setattr(workers, "namespace_digest", lambda **_whose: next(digests))
        with pytest.raises(grpc.aio.AioRpcError, match="weights have changed") as refused:
            await running.stub.Generate(pb.GenerateRequest(text="x"), timeout=5).read()
        assert refused.value.code() is grpc.StatusCode.UNAVAILABLE
        assert [] == stages[0].microbatches


async def test_bytes_that_are_no_message_are_the_callers_mistake(tmp_path: Path) -> None:
    """A client of another version or a broken one must not look like a bug of the scheduler."""
    folder = write_bytes_folder(tmp_path / "m", config={"num_hidden_layers": 1})
    async with mesh(folder, scripted_stages(1, Script())) as running:
        service = "/chunkmesh.v1.Generation"
        channel: Any = running.channel
        calls = (
            channel.unary_stream(f"{service}/Generate")(b"\xff\xff").read(),
            channel.unary_unary(f"{service}/Tokenize")(b"\x0a\x01\xff"),
        )
        for call in calls:
            with pytest.raises(grpc.aio.AioRpcError, match="no message") as refused:
                await call
            assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def violated_field(error: grpc.aio.AioRpcError) -> str:
    """Return the field that the status details blame."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    for detail in status.details:
        violation = error_details_pb2.BadRequest()
        if detail.Unpack(violation):
            return violation.field_violations[0].field
    return ""
