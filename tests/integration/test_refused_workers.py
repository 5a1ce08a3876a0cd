"""Which statuses of a scheduler end a worker, whose weights took long to load, and which do not."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from chunkmesh.address import HostPort
from chunkmesh.errors import ConfigError
from chunkmesh.grpc_client import channel
from chunkmesh.transports.memory import MemoryNetwork
from chunkmesh.v1 import stage_pb2 as pb
from chunkmesh.v1 import stage_pb2_grpc
from scheduler import attach_service
from stage_worker.worker import Capacity
from tests.bytes_tokenizer import write_bytes_folder
from tests.eventually import eventually
from tests.mesh import mesh, run_worker
from tests.scripted_stage import Script, ScriptedStage, scripted_stages


class _Refusing(stage_pb2_grpc.StageControlServicer):
    """Ends every stream with one status."""

    def __init__(self, code: grpc.StatusCode) -> None:
        """Without details, as gRPC itself and proxies say it."""
        self.num_calls = 0
        self._code = code

    async def Attach(
        self,
        _requests: AsyncIterator[pb.AttachRequest],
        context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterator[pb.AttachResponse]:
        """Refuse."""
        self.num_calls += 1
        await context.abort(self._code, "no")
        yield pb.AttachResponse()


@contextlib.asynccontextmanager
async def _attaching(code: grpc.StatusCode) -> AsyncIterator[tuple[_Refusing, asyncio.Task[None]]]:
    """Run a worker in front of somebody who refuses it."""
    server = grpc.aio.server()
    port = server.add_insecure_port("127.0.0.1:0")
    refusing = _Refusing(code)
    stage_pb2_grpc.add_StageControlServicer_to_server(refusing, server)
    await server.start()
    worker = asyncio.create_task(
        run_worker(
            ScriptedStage(0, 1, 1, Script()),
            MemoryNetwork(),
            HostPort(host="127.0.0.1", port=port),
            Capacity(kv_tokens=4096),
        )
    )
    try:
        yield refusing, worker
    finally:
        worker.cancel()
        await asyncio.gather(worker, return_exceptions=True)
        await server.stop(None)


@pytest.mark.parametrize(
    "code",
    [
        grpc.StatusCode.RESOURCE_EXHAUSTED,
        grpc.StatusCode.NOT_FOUND,
        grpc.StatusCode.UNIMPLEMENTED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INTERNAL,
    ],
)
async def test_what_may_pass_does_not_end_a_worker(code: grpc.StatusCode) -> None:
    """A proxy without a backend, a server out of memory: the worker dials again."""
    async with _attaching(code) as (refusing, worker):
        await eventually(lambda: refusing.num_calls > 1)
        assert not worker.done()


async def test_a_refusal_ends_a_worker() -> None:
    """A worker of another model would dial for ever, and nobody would look at its log."""
    async with _attaching(grpc.StatusCode.INVALID_ARGUMENT) as (_, worker):
        with pytest.raises(ConfigError, match="no"):
            async with asyncio.timeout(10):
                await worker


async def test_who_says_nothing_in_time_is_told_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Worker or scheduler may have been stopped in between: that is no refusal."""
    monkeypatch.setattr(attach_service, "_HELLO_S", 0.1)
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 1})
    async with mesh(folder, scripted_stages(1, Script())) as running:
        async with channel(running.internal_address) as to_scheduler:
            call = stage_pb2_grpc.StageControlStub(to_scheduler).Attach()
            with pytest.raises(grpc.aio.AioRpcError, match="no hello within") as ended:
                await call.read()
        assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
