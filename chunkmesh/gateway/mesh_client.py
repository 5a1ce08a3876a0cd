"""Calls the schedulers of a mesh for HTTP clients, each call with the key of its client.

Calls are tried again as chunkmesh.retrying says; a generator that is closed cancels its call.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from typing import Any, TypeAlias, TypeVar

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chunkmesh.errors import ChunkMeshError, DeadlineExceeded, Unavailable
from chunkmesh.grpc_client import RenewedChannel
from chunkmesh.retrying import Servers
from chunkmesh.status import DETAILS_KEY, from_rpc_error
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc

Metadata: TypeAlias = tuple[tuple[str, str], ...]
"""What goes with a call: the key of whoever asks."""
_UNARY_TIMEOUT_S = 30.0
_HEALTH_TIMEOUT_S = 2.0
_Answer = TypeVar("_Answer")
_Stub: TypeAlias = "generation_pb2_grpc.GenerationAsyncStub"


class MeshClient:
    """Channels to the schedulers of one mesh; its owner closes it."""

    def __init__(self, servers: Servers) -> None:
        """Connect on first use."""
        self._servers = servers
        self._channels = {
            address: RenewedChannel(address, servers.access) for address in servers.addresses
        }

    async def close(self) -> None:
        """Close all channels, without waiting for calls."""
        await asyncio.gather(*(channel.close() for channel in self._channels.values()))

    async def generate(
        self, request: pb.GenerateRequest, metadata: Metadata, *, timeout_s: float | None
    ) -> AsyncGenerator[pb.GenerateResponse, None]:
        """Run a request and yield what comes.

        Raises:
            ChunkMeshError: what the scheduler says, that nobody answers, or not within timeout_s.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        attempts = self._servers.begin(request.sampling_params.n or 1)
        while True:
            left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
            stub = generation_pb2_grpc.GenerationStub(self._channels[attempts.server].current())
            call = stub.Generate(request, timeout=left_s, metadata=grpc.aio.Metadata(*metadata))
            try:
                async for reply in call:
                    attempts.heard(reply)
                    yield reply
            except grpc.aio.AioRpcError as error:
                if attempts.has_all():
                    return
                pause_s = attempts.pause_s(error)
                if pause_s is None:
                    raise _own_error(error, timeout_s) from error
            else:
                attempts.answered()
                return
            finally:
                call.cancel()
            await asyncio.sleep(pause_s)

    async def model_info(self, metadata: Metadata) -> pb.GetModelInfoResponse:
        """Describe the model. Raises as generate does."""
        return await self._call(
            lambda stub: stub.GetModelInfo(
                pb.GetModelInfoRequest(),
                timeout=_UNARY_TIMEOUT_S,
                metadata=grpc.aio.Metadata(*metadata),
            )
        )

    async def token_bytes(self, ids: Sequence[int], metadata: Metadata) -> Sequence[bytes]:
        """Return what single tokens add to a text. Raises as generate does."""
        answer = await self._call(
            lambda stub: stub.Detokenize(
                pb.DetokenizeRequest(ids=ids),
                timeout=_UNARY_TIMEOUT_S,
                metadata=grpc.aio.Metadata(*metadata),
            )
        )
        return answer.tokens

    async def unready_reason(self) -> str:
        """Say why no scheduler serves; empty if one does."""
        reasons = await asyncio.gather(*map(self._unready_reason, self._channels.values()))
        return "" if "" in reasons else reasons[0]

    async def _call(self, call: Callable[[_Stub], Awaitable[_Answer]]) -> _Answer:
        """Make a call that changes nothing."""
        attempts = self._servers.begin()
        while True:
            channel = self._channels[attempts.server].current()
            try:
                answer = await call(generation_pb2_grpc.GenerationStub(channel))
            except grpc.aio.AioRpcError as error:
                pause_s = attempts.pause_s(error)
                if pause_s is None:
                    raise _own_error(error, None) from error
            else:
                attempts.answered()
                return answer
            await asyncio.sleep(pause_s)

    async def _unready_reason(self, channel: RenewedChannel) -> str:
        stub: Any = health_pb2_grpc.HealthStub(channel.current())
        try:
            answer = await stub.Check(health_pb2.HealthCheckRequest(), timeout=_HEALTH_TIMEOUT_S)
        except grpc.aio.AioRpcError:
            return "the scheduler does not answer"
        serves = answer.status == health_pb2.HealthCheckResponse.SERVING
        return "" if serves else "the scheduler does not serve yet"


def _own_error(error: grpc.aio.AioRpcError, timeout_s: float | None) -> ChunkMeshError:
    """Return what clients may know: addresses inside are none of their business."""
    meant = from_rpc_error(error)
    if isinstance(meant, DeadlineExceeded) or _has_details(error):
        return meant
    if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
        limit = "" if timeout_s is None else f" of {timeout_s:g} s (--request-timeout)"
        return DeadlineExceeded(f"the request took longer than the limit{limit}")
    if error.code() in {grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.UNIMPLEMENTED}:
        return Unavailable("the mesh does not answer")
    return meant


def _has_details(error: grpc.aio.AioRpcError) -> bool:
    """Return whether the server itself says this."""
    return any(key == DETAILS_KEY for key, _ in error.trailing_metadata() or ())
