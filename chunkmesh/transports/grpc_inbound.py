"""The server side of links over gRPC: answers handshakes and hands streams to their receivers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Literal

import grpc
import grpc.aio
import structlog

from chunkmesh.errors import LinkError
from chunkmesh.transports import handshake
from chunkmesh.transports.base import LinkSpec
from chunkmesh.transports.handshake import Refusal
from chunkmesh.transports.pairing import Pairing
from chunkmesh.v1 import data_plane_pb2, data_plane_pb2_grpc

_Context = grpc.aio.ServicerContext[data_plane_pb2.LinkRequest, data_plane_pb2.LinkResponse]
_log = structlog.get_logger(__name__)


class InboundStream:
    """What the receiver of one link and the call that carries it share."""

    def __init__(self) -> None:
        self.ended = asyncio.Event()
        """Set when either side is done with the link."""
        self._reason = ""
        self._parts: asyncio.Queue[data_plane_pb2.LinkRequest | None] = asyncio.Queue(maxsize=1)
        """None wakes a reader when the stream has ended."""
        self._acknowledgements: asyncio.Queue[None] = asyncio.Queue(maxsize=1)

    async def next_part(self, kind: Literal["header", "payload"]) -> bytes:
        """Return the next message, which must be of this kind. Cancelling loses nothing.

        Raises:
            LinkError: the stream has ended, or another kind came.
        """
        if self.ended.is_set():
            raise LinkError(self._reason)
        part = await self._parts.get()
        if part is None:
            raise LinkError(self._reason)
        found = part.WhichOneof("part")
        if found != kind:
            raise LinkError(f"activation stream with {found} where {kind} belongs")
        return part.header if kind == "header" else part.payload

    def acknowledge(self) -> None:
        """Tell the sender that its activation was received."""
        self._acknowledgements.put_nowait(None)

    def end(self, reason: str) -> None:
        """Finish the link; the first reason stays."""
        if self.ended.is_set():
            return
        self._reason = reason
        self.ended.set()
        if self._parts.empty():
            self._parts.put_nowait(None)

    def close(self) -> None:
        """Finish a link that nobody wants."""
        self.end("the link was closed")

    async def carry(self, context: _Context) -> None:
        """Move messages between the call and the receiver until either side is done."""
        tasks = [
            asyncio.create_task(self._read(context)),
            asyncio.create_task(self._write(context)),
            asyncio.create_task(self.ended.wait()),
        ]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
            self.end("the peer is gone")

    async def _read(self, context: _Context) -> None:
        while isinstance(part := await context.read(), data_plane_pb2.LinkRequest):
            await self._parts.put(part)

    async def _write(self, context: _Context) -> None:
        while True:
            await self._acknowledgements.get()
            await context.write(data_plane_pb2.LinkResponse())


class DataPlane(data_plane_pb2_grpc.DataPlaneServicer):
    """The service of the data port."""

    def __init__(self, *, timeout_s: float) -> None:
        self.pairing: Pairing[InboundStream] = Pairing()
        self._timeout_s = timeout_s
        self._streams: set[InboundStream] = set()

    async def Link(  # type: ignore[override] # gRPC takes coroutines too
        self, _: AsyncIterator[data_plane_pb2.LinkRequest], context: _Context
    ) -> None:
        """Carry one link from handshake to end."""
        stream = InboundStream()
        accepted, answer = await self._judge(context, stream)
        try:
            await context.write(data_plane_pb2.LinkResponse(handshake=answer))
            if accepted:
                await stream.carry(context)
        finally:
            stream.end("the peer is gone")
            self._streams.discard(stream)

    def close(self) -> None:
        """End every wait and every link."""
        self.pairing.close()
        for stream in self._streams:
            stream.close()

    async def _judge(self, context: _Context, stream: InboundStream) -> tuple[bool, bytes]:
        """Return whether the caller gets a link, and the answer to its handshake."""
        try:
            async with asyncio.timeout(self._timeout_s):
                first = await context.read()
            spec = _read_hello(first)
        except (LinkError, TimeoutError) as error:
            _log.warning("link refused", reason="malformed", error=str(error))
            return False, handshake.encode_refusal(Refusal.MALFORMED)
        refusal = self.pairing.judge(spec)
        if refusal is not None:
            _log.warning("link refused", reason=refusal.name.lower(), epoch=spec.epoch)
            return False, handshake.encode_refusal(refusal)
        self._streams.add(stream)
        self.pairing.claim(spec.token, stream)
        return True, handshake.encode_acceptance()


def _read_hello(first: object) -> LinkSpec:
    if not isinstance(first, data_plane_pb2.LinkRequest) or first.WhichOneof("part") != "handshake":
        raise LinkError("the stream does not begin with a handshake")
    return handshake.decode_hello(first.handshake).spec
