"""Links over gRPC streams, where UCX cannot run: one stream a link, payloads in parts of 4 MiB.

Every activation is acknowledged by its receiver, so at most one is under way.
"""

from __future__ import annotations

import asyncio
import time

import grpc
import grpc.aio
import torch

from chunkmesh.address import HostPort, Listen
from chunkmesh.errors import ConfigError, LinkError
from chunkmesh.grpc_options import HANDSHAKE_S, MAX_METADATA_BYTES
from chunkmesh.ports import free_address
from chunkmesh.rpc_errors import ErrorInterceptor
from chunkmesh.transports import handshake
from chunkmesh.transports.base import HANDSHAKE_TIMEOUT_S, Activation, LinkSpec
from chunkmesh.transports.grpc_inbound import DataPlane, InboundStream
from chunkmesh.transports.handshake import Hello
from chunkmesh.transports.header import Header
from chunkmesh.transports.sequence import InboundSequence, OutboundSequence
from chunkmesh.trust.access import Door, Role
from chunkmesh.trust.credentials import channel_credentials, server_credentials
from chunkmesh.trust.guard import Guard
from chunkmesh.trust.interceptor import GuardInterceptor
from chunkmesh.trust.tls_files import TlsFiles
from chunkmesh.v1 import data_plane_pb2, data_plane_pb2_grpc

PART_BYTES = 4 * 1024 * 1024
_MAX_CALLS = 1024
"""At a time on the data port: the link in use, and strangers in their handshake."""
_MAX_STREAMS = 4
"""Calls at a time of one connection; a worker makes one."""
_GRACE_S = 0.5
"""For streams that have ended already to say so."""

_Option = tuple[str, int | str]
_Call = grpc.aio.StreamStreamCall[data_plane_pb2.LinkRequest, data_plane_pb2.LinkResponse]

_MESSAGE_OPTIONS: tuple[_Option, ...] = (
    ("grpc.max_receive_message_length", PART_BYTES + 4096),
    ("grpc.max_send_message_length", PART_BYTES + 4096),
    ("grpc.max_metadata_size", MAX_METADATA_BYTES),
    ("grpc.absolute_max_metadata_size", MAX_METADATA_BYTES),
)
_SERVER_OPTIONS: tuple[_Option, ...] = (
    *_MESSAGE_OPTIONS,
    ("grpc.so_reuseport", 0),
    ("grpc.max_concurrent_streams", _MAX_STREAMS),
    ("grpc.server_handshake_timeout_ms", HANDSHAKE_S * 1000),
)
_CHANNEL_OPTIONS: tuple[_Option, ...] = (
    *_MESSAGE_OPTIONS,
    ("grpc.use_local_subchannel_pool", 1),  # a worker that was down must not delay the next dial
    ("grpc.enable_http_proxy", 0),
)


class _GrpcSender:
    transport = "grpc"

    def __init__(
        self, channel: grpc.aio.Channel, call: _Call, sequence: OutboundSequence, rtt_us: int
    ) -> None:
        self.rtt_us = rtt_us
        self._channel = channel
        self._call = call
        self._sequence = sequence
        self.closed = False

    async def send(self, activation: Activation, payload: torch.Tensor) -> None:
        with self._sequence.next(activation, payload) as header:
            await self._transmit(header, payload)

    async def close(self) -> None:
        self.closed = True
        self._call.cancel()
        await self._channel.close()

    async def _transmit(self, header: bytes, payload: torch.Tensor) -> None:
        if self.closed:
            raise LinkError("the link was closed")
        try:
            await self._call.write(data_plane_pb2.LinkRequest(header=header))
            for begin in range(0, payload.numel(), PART_BYTES):
                part = payload[begin : begin + PART_BYTES].cpu().numpy().tobytes()
                await self._call.write(data_plane_pb2.LinkRequest(payload=part))
            answer = await self._call.read()
        except grpc.RpcError as error:
            await self.close()
            raise LinkError(f"send failed: {_describe(error)}") from error
        except asyncio.CancelledError as error:
            await self._end_cancelled(error)
        except asyncio.InvalidStateError as error:
            await self.close()
            raise LinkError("the peer closed the link") from error
        if not isinstance(answer, data_plane_pb2.LinkResponse) or answer.handshake:
            await self.close()
            raise LinkError("the peer closed the link")

    async def _end_cancelled(self, error: asyncio.CancelledError) -> None:
        """Tell our own cancellation, which breaks the link, from that of the call by close."""
        task = asyncio.current_task()
        was_closed = self.closed
        await self.close()
        if was_closed and not (task and task.cancelling()):
            raise LinkError("the link was closed") from error
        raise error


class _GrpcReceiver:
    def __init__(self, stream: InboundStream, spec: LinkSpec) -> None:
        self._stream = stream
        self._sequence = InboundSequence(spec)
        self._header: Header | None = None
        self._received_bytes = 0
        self._kept = torch.empty(0, dtype=torch.uint8)
        """What a cancelled receive had of the payload."""

    async def receive(self, into: torch.Tensor) -> Activation:
        self._sequence.check_into(into)
        try:
            return await self._receive(into)
        except LinkError as error:
            self._stream.end(str(error))
            raise
        except asyncio.CancelledError:
            self._kept = into[: self._received_bytes].clone()
            raise

    async def close(self) -> None:
        self._stream.end("the link was closed")

    async def _receive(self, into: torch.Tensor) -> Activation:
        into[: self._received_bytes].copy_(self._kept)
        if self._header is None:
            self._header = self._sequence.open(await self._stream.next_part("header"))
        header = self._header
        while self._received_bytes < header.payload_bytes:
            part = await self._stream.next_part("payload")
            end = self._received_bytes + len(part)
            if not part or end > header.payload_bytes:
                raise LinkError(f"payload part of {len(part)} bytes is more than announced")
            into[self._received_bytes : end].copy_(
                torch.frombuffer(bytearray(part), dtype=torch.uint8)
            )
            self._received_bytes = end
        activation = self._sequence.finish(header, into, self._received_bytes)
        self._stream.acknowledge()
        self._header = None
        self._received_bytes = 0
        self._kept = into[:0]
        return activation


class GrpcTransport:
    """One worker's way to its neighbours over gRPC; see base.Transport."""

    name = "grpc"

    def __init__(
        self,
        address: str,
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        tls: TlsFiles | None = None,
    ) -> None:
        """Prepare; with tls both ends of a link must be workers by their certificates."""
        self.address = address
        self._tls = tls
        self._timeout_s = handshake_timeout_s
        self._data_plane = DataPlane(timeout_s=handshake_timeout_s)
        self._server: grpc.aio.Server | None = None
        self._senders: list[_GrpcSender] = []

    async def start(self) -> None:
        """Listen."""
        guard = Guard(door=Door.DATA, tls=self._tls, is_mutual=self._tls is not None)
        server = grpc.aio.server(
            interceptors=[ErrorInterceptor(), GuardInterceptor(guard)],
            options=_SERVER_OPTIONS,
            maximum_concurrent_rpcs=_MAX_CALLS,
        )
        data_plane_pb2_grpc.add_DataPlaneServicer_to_server(self._data_plane, server)
        asked = HostPort.parse(self.address)
        listen = Listen(host=asked.host, port=asked.port, flag="--data-port", explicit=True)
        address = free_address(listen)
        try:
            if self._tls is None:
                server.add_insecure_port(str(address))
            else:
                server.add_secure_port(str(address), server_credentials(self._tls))
        except RuntimeError as error:
            raise ConfigError(f"data address {address} cannot be bound: {error}") from error
        await server.start()
        self._server = server
        self.address = str(address)

    async def accept(self, spec: LinkSpec) -> _GrpcReceiver:
        """Wait for the stage before."""
        return _GrpcReceiver(await self._data_plane.pairing.expect(spec), spec)

    async def dial(self, address: str, spec: LinkSpec) -> _GrpcSender:
        """Connect to the next stage."""
        channel = self._channel(address)
        call: _Call = data_plane_pb2_grpc.DataPlaneStub(channel).Link()
        begin = time.perf_counter()
        try:
            async with asyncio.timeout(self._timeout_s):
                await _greet(call, spec)
        except (grpc.RpcError, TimeoutError) as error:
            call.cancel()
            await channel.close()
            raise LinkError(f"no worker answers at {address}: {_describe(error)}") from error
        except BaseException:
            call.cancel()
            await channel.close()
            raise
        rtt_us = round((time.perf_counter() - begin) * 1e6)
        sequence = OutboundSequence(spec)
        sender = _GrpcSender(channel, call, sequence, rtt_us)
        self._senders = [kept for kept in self._senders if not kept.closed]
        self._senders.append(sender)
        return sender

    def _channel(self, address: str) -> grpc.aio.Channel:
        if self._tls is None:
            return grpc.aio.insecure_channel(address, options=_CHANNEL_OPTIONS)
        name = ("grpc.ssl_target_name_override", Role.WORKER.certificate_name)
        return grpc.aio.secure_channel(
            address, channel_credentials(self._tls.current()), options=(*_CHANNEL_OPTIONS, name)
        )

    async def close(self) -> None:
        """Stop listening and close every link."""
        self._data_plane.close()
        for sender in self._senders:
            await sender.close()
        self._senders.clear()
        if self._server is not None:
            await self._server.stop(_GRACE_S)


async def _greet(call: _Call, spec: LinkSpec) -> None:
    hello = handshake.encode_hello(Hello(spec=spec, address=b""))
    await call.write(data_plane_pb2.LinkRequest(handshake=hello))
    answer = await call.read()
    if not isinstance(answer, data_plane_pb2.LinkResponse):
        raise LinkError("the peer ended the handshake")
    handshake.decode_answer(answer.handshake)


def _describe(error: Exception) -> str:
    if isinstance(error, grpc.aio.AioRpcError):
        return f"{error.code().name.lower()}: {error.details()}"
    return str(error) or "no answer in time"
