"""What one client can take from a gRPC server: sizes, numbers and times, each tried for real.

gRPC ignores an option whose name it does not know, so none of them may go untested. The size of a
message is tried in test_grpc_server.py.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import pytest

from chunkmesh import grpc_options, grpc_server
from chunkmesh.address import HostPort, Listen
from chunkmesh.errors import Overloaded
from chunkmesh.grpc_client import channel
from chunkmesh.grpc_options import MAX_METADATA_BYTES
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.status import from_rpc_error

Context = grpc.aio.ServicerContext[bytes, bytes]


async def _unary(request: bytes, context: Context) -> bytes:
    if request:
        context.set_trailing_metadata((("long", request.decode()),))
    return b""


async def _hold(_request: bytes, _context: Context) -> AsyncIterator[bytes]:
    yield b"here"
    await asyncio.Event().wait()


@contextlib.asynccontextmanager
async def _serving() -> AsyncIterator[HostPort]:
    chassis = GrpcServer()
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Hold": grpc.unary_stream_rpc_method_handler(_hold),
    }
    generic = grpc.method_handlers_generic_handler("test.Limits", handlers)
    chassis.server.add_generic_rpc_handlers((generic,))
    listen = Listen(host="127.0.0.1", port=0, flag="--port", explicit=True)
    async with chassis.listening(listen, grace_s=0) as address:
        yield address


async def _send(address: HostPort, num_bytes: int, request: bytes = b"") -> grpc.StatusCode:
    async with channel(address) as connection:
        call: Any = connection.unary_unary("/test.Limits/Unary")
        metadata = grpc.aio.Metadata(("long", "x" * num_bytes))
        try:
            await call(request, metadata=metadata, timeout=5)
        except grpc.aio.AioRpcError as error:
            return error.code()
        return grpc.StatusCode.OK


async def test_headers_have_a_limit() -> None:
    """Keys and names are short; whoever sends more is not read."""
    async with _serving() as address:
        assert grpc.StatusCode.OK is await _send(address, MAX_METADATA_BYTES - 1024)
        code = await _send(address, MAX_METADATA_BYTES + 1024)
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def test_trailers_have_the_same_limit_at_the_client() -> None:
    """A server that was taken over must not fill its clients' memory."""
    async with _serving() as address:
        code = await _send(address, 0, b"x" * (MAX_METADATA_BYTES + 1024))
    assert code is grpc.StatusCode.RESOURCE_EXHAUSTED


async def _held(connection: grpc.aio.Channel, number: int) -> list[Any]:
    """Begin calls that never end, and return those that the server has taken."""
    stream: Any = connection.unary_stream("/test.Limits/Hold")
    calls = [stream(b"", timeout=60) for _ in range(number)]
    reads = [asyncio.create_task(call.read()) for call in calls]
    await asyncio.wait(reads, timeout=0.5)
    taken = [call for call, read in zip(calls, reads, strict=True) if _is_taken(read)]
    for read in reads:
        read.cancel()
    await asyncio.gather(*reads, return_exceptions=True)
    return taken


def _is_taken(read: asyncio.Task[object]) -> bool:
    return read.done() and read.exception() is None and read.result() == b"here"


async def test_calls_of_a_connection_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """More of them wait at the client, where they cost this server nothing."""
    options = dict(grpc_options.SERVER_OPTIONS)
    assert options["grpc.max_concurrent_streams"] == grpc_options.MAX_STREAMS
    few = (*options.items(), ("grpc.max_concurrent_streams", 3))
    monkeypatch.setattr(grpc_server, "SERVER_OPTIONS", tuple(dict(few).items()))
    async with _serving() as address, channel(address) as connection:
        assert len(await _held(connection, 8)) == 3


async def test_calls_of_a_server_have_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Many connections do not get around the limit of one; who is refused is told at once."""
    monkeypatch.setattr(grpc_server, "MAX_CALLS", 4)
    async with _serving() as address, channel(address) as one, channel(address) as two:
        taken = await _held(one, 4)
        assert len(taken) == 4
        call: Any = two.unary_unary("/test.Limits/Unary")
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await call(b"", timeout=5)
    assert caught.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert isinstance(from_rpc_error(caught.value), Overloaded)


async def test_a_handshake_has_a_time_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection that says nothing is not kept."""
    options = dict(grpc_options.SERVER_OPTIONS)
    assert options["grpc.server_handshake_timeout_ms"] == grpc_options.HANDSHAKE_S * 1000
    short = {**options, "grpc.server_handshake_timeout_ms": 300}
    monkeypatch.setattr(grpc_server, "SERVER_OPTIONS", tuple(short.items()))

    def wait_for_the_end(address: HostPort) -> float:
        begin = time.monotonic()
        stranger = socket.create_connection((address.host, address.port), timeout=10)
        with stranger, contextlib.suppress(ConnectionResetError):
            while stranger.recv(4096):
                pass
        return time.monotonic() - begin

    async with _serving() as address:
        assert await asyncio.to_thread(wait_for_the_end, address) < 5
