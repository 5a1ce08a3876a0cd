"""Clients that do not read: what waits for them is bounded, and then their requests end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest
from google.rpc import error_details_pb2
from grpc_status import rpc_status

from chunkmesh.grpc_options import CLIENT_OPTIONS
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import Mesh, mesh
from tests.scripted_stage import Script, scripted_stages

Call: TypeAlias = "grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]"
NEW_TOKENS = 1500
"""Whose messages are far more than gRPC buffers of a stream."""


@contextlib.asynccontextmanager
async def scripted_mesh(tmp_path: Path, **settings: Any) -> AsyncIterator[Mesh]:
    """Run a mesh whose stages compute nothing, with room for one long output."""
    folder = write_bytes_folder(
        tmp_path / "m", config={"num_hidden_layers": 1, "max_position_embeddings": 1 << 20}
    )
    async with mesh(
        folder,
        scripted_stages(1, Script()),
        kv_capacity_tokens=1 << 18,
        page_size=1024,
        **settings,
    ) as running:
        yield running


@contextlib.asynccontextmanager
async def stub_of(running: Mesh) -> AsyncIterator[generation_pb2_grpc.GenerationAsyncStub]:
    """Connect a client whose window does not grow: it takes 64 KiB that nobody reads."""
    options = [*CLIENT_OPTIONS, ("grpc.http2.bdp_probe", 0), ("grpc.http2.lookahead_bytes", 1024)]
    async with grpc.aio.insecure_channel(str(running.address), options=options) as link:
        yield generation_pb2_grpc.GenerationStub(link)


def long_request(request_id: str, *, stream: bool = True, **more: Any) -> pb.GenerateRequest:
    """Ask for a long output."""
    params = pb.SamplingParams(
        max_new_tokens=NEW_TOKENS, ignore_eos=True, logprobs=True, top_logprobs=20, **more
    )
    return pb.GenerateRequest(
        request_id=request_id, text="x", stream=stream, sampling_params=params
    )


async def ended(running: Mesh, request_id: str) -> None:
    """Wait until a request is gone."""
    async with asyncio.timeout(60):
        while request_id in running.control_loop.requests:
            await asyncio.sleep(0.01)


async def read_on(call: Call) -> tuple[int, grpc.aio.AioRpcError]:
    """Read what is left of a call that fails; return how many messages that were."""
    num_messages = 0
    try:
        while await call.read() is not grpc.aio.EOF:
            num_messages += 1
    except grpc.aio.AioRpcError as error:
        return num_messages, error
    pytest.fail("the call ended well")


def reason_of(error: grpc.aio.AioRpcError) -> str:
    """Return the reason in a status' details."""
    status = rpc_status.from_call(error)  # type: ignore[arg-type]
    assert status is not None
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    return info.reason


async def test_a_client_that_stops_reading_loses_its_request(tmp_path: Path) -> None:
    """Its pages are needed by those who read; it hears which limit it was, when it reads on."""
    async with scripted_mesh(tmp_path, max_unread_bytes=20_000) as running:
        snapshot = running.control_loop.engine.snapshot
        async with stub_of(running) as stub:
            call = stub.Generate(long_request("slow"))
            await call.read()
            assert snapshot().num_free_pages < snapshot().num_pages
            await ended(running, "slow")
            await running.at_rest()
            assert snapshot().num_free_pages == snapshot().num_pages
            made = running.control_loop.requests.timelines()[-1].output_tokens
            num_messages, error = await read_on(call)
        assert grpc.StatusCode.RESOURCE_EXHAUSTED is error.code()
        assert "SLOW_READER" == reason_of(error)
        assert "20000 (--max-unread-bytes)" in str(error.details())
        assert made < NEW_TOKENS
        assert num_messages < made
        complete = await running.generate(text="next", sampling_params={"max_new_tokens": 2})
        assert 2 == complete.completion_tokens


async def test_a_client_that_reads_is_not_slow_however_small_the_limit(tmp_path: Path) -> None:
    """Whatever comes at once is no fault of the reader."""
    async with scripted_mesh(tmp_path, max_unread_bytes=1024, unread_timeout=0.5) as running:
        request = long_request("fast")
        request.sampling_params.max_new_tokens = 1000
        num_tokens = 0
        async for response in running.stub.Generate(request):
            num_tokens += len(response.chunk.token_ids)
        assert 1000 == num_tokens
        assert response.complete.completion_tokens == 1000


async def test_an_end_that_is_not_taken_is_given_up(tmp_path: Path) -> None:
    """Not streamed: all that comes is one message, of which gRPC buffers a part."""
    async with scripted_mesh(tmp_path, unread_timeout=0.5) as running, stub_of(running) as stub:
        calls = [stub.Generate(long_request(name, stream=False)) for name in ("whole", "slow")]
        whole = await calls[0].read()
        assert isinstance(whole, pb.GenerateResponse)
        assert NEW_TOKENS == whole.complete.completion_tokens
        async with asyncio.timeout(60):
            while running.open_calls:
                await asyncio.sleep(0.01)
        await running.at_rest()


async def test_many_stopped_readers_leave_no_call_open(tmp_path: Path) -> None:
    """Each keeps a stream of its connection, and nothing else."""
    async with (
        scripted_mesh(tmp_path, max_unread_bytes=4096, unread_timeout=1.0) as running,
        stub_of(running) as stub,
    ):
        calls = [stub.Generate(long_request(f"r{i}")) for i in range(12)]
        await asyncio.gather(*(call.read() for call in calls))
        async with asyncio.timeout(60):
            while running.open_calls:
                await asyncio.sleep(0.05)
        await running.at_rest()
        failed = [(await read_on(call))[1].code() for call in calls]
        assert {grpc.StatusCode.RESOURCE_EXHAUSTED} == set(failed)
