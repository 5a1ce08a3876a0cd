"""Links over UCX tag messages: TCP or shared memory between CPUs, RDMA or NVLink between GPUs.

The one module that imports ucxx. Every link has a UCX worker of its own, which ends with it, so no
message of an earlier epoch can reach a later one. UCX has no security of its own: the network
between the workers must be private.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Coroutine
from typing import Any

import structlog
import torch
from ucxx._lib import libucxx
from ucxx._lib.arr import Array

from chunkmesh.address import HostPort
from chunkmesh.errors import ConfigError, LinkError
from chunkmesh.transports import gpu_memory
from chunkmesh.transports.base import HANDSHAKE_TIMEOUT_S, LinkSpec
from chunkmesh.transports.handshake import Hello
from chunkmesh.transports.interfaces import interface_of
from chunkmesh.transports.progress import Progress
from chunkmesh.transports.rendezvous import Line, Rendezvous, meet
from chunkmesh.transports.sequence import OutboundSequence
from chunkmesh.transports.tag_links import TagReceiver, TagSender
from chunkmesh.transports.ucp import TagReceive, Ucp, endpoint_transports

_CPU = torch.device("cpu")
_log = structlog.get_logger(__name__)


class UcxChannel:
    """One UCX worker with one endpoint: each end of a link has one. See tag_links.TagChannel."""

    def __init__(self, context: libucxx.UCXContext, ucp: Ucp, spec: LinkSpec) -> None:
        self._ucp = ucp
        self._worker = libucxx.UCXWorker(context)
        self._worker.init_blocking_progress_mode()
        self.address = bytes(self._worker.address)
        link = int.from_bytes(spec.token[:2], "little") or 1
        self._tag_base = link << 48 | (spec.epoch & 0xFFFF) << 32
        """Tag = link (never 0) || epoch || message."""
        self._progress = Progress(self._worker, (libucxx.UCXError,))
        self._endpoint: libucxx.UCXEndpoint | None = None
        self._line: Line | None = None
        self._watch: asyncio.Task[None] | None = None
        self._receives: list[tuple[TagReceive, torch.Tensor]] = []
        """Posted, with the buffers that must outlive them."""
        self.closed = False

    def attach(self, line: Line) -> None:
        """Learn of the peer; the link breaks when its line ends."""
        self._line = line
        self._watch = asyncio.get_running_loop().create_task(self._watch_line(line))

    def connect(self) -> None:
        """Make the endpoint to the peer.

        Raises:
            LinkError: the peer's UCX address is none, or cannot be reached.
        """
        line = self._line
        if line is None or not line.peer_address:
            raise LinkError("the peer gave no UCX address")
        try:
            peer = libucxx.UCXAddress.create_from_buffer(line.peer_address)
            self._endpoint = libucxx.UCXEndpoint.create_from_worker_address(
                self._worker, peer, endpoint_error_handling=True
            )
        except libucxx.UCXError as error:
            raise LinkError(f"no UCX endpoint to the peer: {error}") from error
        self._endpoint.set_close_callback(self._progress.fail, ("the peer is gone",))

    @property
    def transports(self) -> str:
        """What the endpoint really uses, joined by +; ucx if UCX does not tell."""
        if self._endpoint is None:
            return "ucx"
        return "+".join(endpoint_transports(self._ucp, self._endpoint.handle)) or "ucx"

    async def send(self, *messages: tuple[int, torch.Tensor]) -> None:
        """Send each tensor with its tag and wait until UCX needs none of them any more."""
        if self._endpoint is None or self._progress.error is not None:
            raise LinkError(self._progress.error or "the link is not connected")
        try:
            requests = [
                self._endpoint.tag_send(_as_array(tensor), libucxx.UCXXTag(self._tag_base | tag))
                for tag, tensor in messages
            ]
        except libucxx.UCXError as error:
            raise LinkError(f"send failed: {error}") from error
        try:
            await self._progress.until(lambda: all(_is_sent(request) for request in requests))
        except asyncio.CancelledError:
            self._progress.fail("a send was cancelled")
            self.close()
            raise

    def post(self, tag: int, into: torch.Tensor) -> TagReceive:
        """Post a receive for one message."""
        if self.closed:
            raise LinkError(self._progress.error or "the link was closed")
        self._receives = [posted for posted in self._receives if not posted[0].settled]
        buffer = (into.data_ptr(), into.numel())
        receive = TagReceive(self._ucp, self._worker.handle, buffer, self._tag_base | tag)
        self._receives.append((receive, into))
        return receive

    async def arrival(self, receive: TagReceive) -> int:
        """Wait for a posted receive."""
        await self._progress.until(receive.arrived)
        return receive.length

    def close(self) -> None:
        """End the link."""
        if self.closed:
            return
        self.closed = True
        self._progress.close()
        if self._watch is not None:
            self._watch.cancel()
        if self._line is not None:
            self._line.close()
        if self._endpoint is not None:
            self._endpoint.remove_close_callback()
            self._endpoint.close_blocking()
            self._endpoint = None
        for receive, _ in self._receives:
            receive.abandon()
        self._worker.progress()
        del self._worker
        self._receives.clear()

    async def _watch_line(self, line: Line) -> None:
        await line.wait_end()
        self._progress.advance()
        self._progress.fail("the peer is gone")


def _as_array(tensor: torch.Tensor) -> Array:
    """Wrap a flat uint8 tensor for UCXX without a copy, on the CPU or a GPU."""
    return Array(tensor.numpy() if tensor.device.type == "cpu" else tensor)


def _is_sent(request: libucxx.UCXRequest) -> bool:
    if not request.completed:
        return False
    try:
        request.check_error()
    except libucxx.UCXError as error:
        raise LinkError(f"send failed: {error}") from error
    return True


class UcxTransport:
    """One worker's way to its neighbours over UCX; see base.Transport."""

    name = "ucx"

    def __init__(
        self,
        address: str,
        *,
        handshake_timeout_s: float = HANDSHAKE_TIMEOUT_S,
        device: torch.device = _CPU,
    ) -> None:
        """Prepare; device is where activations are."""
        self.address = address
        self._timeout_s = handshake_timeout_s
        self._device = device
        self._rendezvous: Rendezvous | None = None
        self._context: libucxx.UCXContext | None = None
        self._ucp = Ucp()
        self._channels: list[UcxChannel] = []

    async def start(self) -> None:
        """Listen at the address and open UCX on its interface."""
        asked = HostPort.parse(self.address)
        gpu_memory.enter(self._device)
        self._context = _open_context(interface_of(asked.host))
        self._rendezvous = Rendezvous(asked.host, asked.port, timeout_s=self._timeout_s)
        await self._rendezvous.start()
        self.address = str(HostPort(host=asked.host, port=self._rendezvous.port))

    async def accept(self, spec: LinkSpec) -> TagReceiver:
        """Wait for the stage before."""
        if self._rendezvous is None:
            raise LinkError("the transport is not started")
        channel = self._open_channel(spec)
        receiver = TagReceiver(channel, spec)
        await self._greet(receiver, channel, self._rendezvous.expect(spec, channel.address))
        return receiver

    async def dial(self, address: str, spec: LinkSpec) -> TagSender:
        """Connect to the next stage."""
        channel = self._open_channel(spec)
        sequence = OutboundSequence(spec)
        sender = TagSender(channel, sequence)
        hello = Hello(spec=spec, address=channel.address)
        await self._greet(sender, channel, meet(address, hello, timeout_s=self._timeout_s))
        return sender

    async def close(self) -> None:
        """Stop listening and close every link."""
        if self._rendezvous is not None:
            self._rendezvous.close()
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        self._context = None

    async def _greet(
        self, end: TagSender | TagReceiver, channel: UcxChannel, line: Coroutine[Any, Any, Line]
    ) -> None:
        """Wait for the line to the peer, then exchange pings; a failure closes the channel.

        Raises:
            LinkError: the peer does not come, is refused, or does not greet in time.
        """
        try:
            channel.attach(await line)
            async with asyncio.timeout(self._timeout_s):
                await end.greet()
        except TimeoutError as error:
            channel.close()
            raise LinkError("the peer did not greet over UCX in time") from error
        except BaseException:
            channel.close()
            raise

    def _open_channel(self, spec: LinkSpec) -> UcxChannel:
        if self._context is None:
            raise LinkError("the transport is not started")
        channel = UcxChannel(self._context, self._ucp, spec)
        self._channels = [kept for kept in self._channels if not kept.closed]
        self._channels.append(channel)
        return channel


def _open_context(interface: str) -> libucxx.UCXContext:
    """Open UCX on one interface; an operator's own UCX_NET_DEVICES, such as an RDMA NIC, wins."""
    options = {} if "UCX_NET_DEVICES" in os.environ else {"NET_DEVICES": interface}
    features = (libucxx.Feature.TAG, libucxx.Feature.WAKEUP)
    try:
        context = libucxx.UCXContext(options, features)
    except libucxx.UCXError as error:
        raise ConfigError(f"UCX cannot be opened on {interface}: {error}") from error
    _log.info("ucx opened", interface=interface, net_devices=context.config["NET_DEVICES"])
    return context
