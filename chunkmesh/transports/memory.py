"""Links inside one process and one event loop, for tests: no sockets, the same checks.

Workers that share a MemoryNetwork reach each other by address.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time

import torch

from chunkmesh.errors import ConfigError, LinkError
from chunkmesh.transports import handshake
from chunkmesh.transports.base import Activation, LinkSpec
from chunkmesh.transports.pairing import Pairing
from chunkmesh.transports.sequence import InboundSequence, OutboundSequence


class MemoryNetwork:
    """The addresses that are listened on; one for each test or process."""

    def __init__(self) -> None:
        self.listeners: dict[str, Pairing[_Pipe]] = {}


@dataclasses.dataclass(slots=True, kw_only=True)
class _Message:
    header: bytes
    payload: torch.Tensor
    taken: asyncio.Future[None]
    """Done when the receiver has copied the payload."""


class _Pipe:
    """What both ends of a link share."""

    def __init__(self) -> None:
        self.broken: LinkError | None = None
        self._message: _Message | None = None
        self._arrived = asyncio.Event()

    async def put(self, header: bytes, payload: torch.Tensor) -> None:
        """Offer a message and wait until it was taken."""
        self.check()
        message = _Message(
            header=header, payload=payload, taken=asyncio.get_running_loop().create_future()
        )
        self._message = message
        self._arrived.set()
        try:
            await message.taken
        except asyncio.CancelledError:
            self.fail("a send was cancelled")
            raise

    async def get(self) -> _Message:
        """Wait for a message; it stays until take_away."""
        while self._message is None:
            self.check()
            self._arrived.clear()
            await self._arrived.wait()
        return self._message

    def take_away(self, message: _Message) -> None:
        """Forget a message that was copied, and let its sender go on."""
        self._message = None
        if not message.taken.done():
            message.taken.set_result(None)

    def fail(self, reason: str) -> None:
        """Break the link for both ends."""
        if self.broken is not None:
            return
        self.broken = LinkError(reason)
        if self._message is not None and not self._message.taken.done():
            self._message.taken.set_exception(LinkError(reason))
        self._message = None
        self._arrived.set()

    def check(self) -> None:
        """Raise what broke the link."""
        if self.broken is not None:
            raise LinkError(str(self.broken))

    def close(self) -> None:
        """Break the link because an end closed."""
        self.fail("the link was closed")


class _MemorySender:
    transport = "memory"

    def __init__(self, pipe: _Pipe, sequence: OutboundSequence, rtt_us: int) -> None:
        self.rtt_us = rtt_us
        self._pipe = pipe
        self._sequence = sequence

    async def send(self, activation: Activation, payload: torch.Tensor) -> None:
        with self._sequence.next(activation, payload) as header:
            await self._transmit(header, payload)

    async def _transmit(self, header: bytes, payload: torch.Tensor) -> None:
        await self._pipe.put(header, payload)

    async def close(self) -> None:
        self._pipe.close()


class _MemoryReceiver:
    def __init__(self, pipe: _Pipe, spec: LinkSpec) -> None:
        self._pipe = pipe
        self._sequence = InboundSequence(spec)

    async def receive(self, into: torch.Tensor) -> Activation:
        self._sequence.check_into(into)
        message = await self._pipe.get()
        try:
            header = self._sequence.open(message.header)
            activation = self._sequence.finish(header, message.payload, message.payload.numel())
        except LinkError as error:
            self._pipe.fail(str(error))
            raise
        into[: message.payload.numel()].copy_(message.payload)
        if into.is_cuda:
            torch.cuda.current_stream(into.device).synchronize()
        self._pipe.take_away(message)
        return activation

    async def close(self) -> None:
        self._pipe.close()


class MemoryTransport:
    """One worker's end of a MemoryNetwork."""

    name = "memory"

    def __init__(self, network: MemoryNetwork, address: str) -> None:
        self.address = address
        self._network = network
        self._pairing: Pairing[_Pipe] = Pairing()
        self._pipes: list[_Pipe] = []

    async def start(self) -> None:
        """Take the address."""
        if self.address in self._network.listeners:
            raise ConfigError(f"address {self.address} is in use; choose another")
        self._network.listeners[self.address] = self._pairing

    async def accept(self, spec: LinkSpec) -> _MemoryReceiver:
        """Wait for the stage before."""
        pipe = await self._pairing.expect(spec)
        self._keep(pipe)
        return _MemoryReceiver(pipe, spec)

    async def dial(self, address: str, spec: LinkSpec) -> _MemorySender:
        """Connect to a worker of the same network."""
        begin = time.perf_counter()
        listener = self._network.listeners.get(address)
        if listener is None:
            raise LinkError(f"nobody listens at {address}")
        offered = handshake.decode_hello(
            handshake.encode_hello(handshake.Hello(spec=spec, address=b""))
        ).spec
        refusal = listener.judge(offered)
        if refusal is not None:
            raise LinkError(f"link refused: {refusal.name.lower()}")
        pipe = _Pipe()
        listener.claim(spec.token, pipe)
        self._keep(pipe)
        sequence = OutboundSequence(spec)
        return _MemorySender(pipe, sequence, round((time.perf_counter() - begin) * 1e6))

    async def close(self) -> None:
        """Give the address back and break every link."""
        if self._network.listeners.get(self.address) is self._pairing:
            del self._network.listeners[self.address]
        self._pairing.close()
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()

    def _keep(self, pipe: _Pipe) -> None:
        self._pipes = [kept for kept in self._pipes if kept.broken is None]
        self._pipes.append(pipe)
