"""The two ends of a link over tag messages: what is sent and posted, in which order.

An activation is two messages, its header and its payload, each with a tag of its own. The receives
of both are posted before the activation exists. How messages travel, the channel knows.
"""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

import numpy as np
import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import Activation, LinkSpec
from chunkmesh.transports.header import HEADER_BYTES
from chunkmesh.transports.sequence import InboundSequence, OutboundSequence
from chunkmesh.transports.ucp import TagReceive

_PING = 0xFFFF_FFFE
_PONG = 0xFFFF_FFFF
_NUM_PINGS = 3
"""The first ones build the connection, the last one is timed."""


class TagChannel(Protocol):
    """One link's way for tag messages of flat uint8 tensors. Tags are 32 bits."""

    @property
    def transports(self) -> str:
        """What is really used, such as tcp."""
        ...

    def connect(self) -> None:
        """Make the way to the peer.

        Raises:
            LinkError: it cannot be reached.
        """
        ...

    async def send(self, *messages: tuple[int, torch.Tensor]) -> None:
        """Send each tensor with its tag; unchanged until return. Cancelling breaks the link."""
        ...

    def post(self, tag: int, into: torch.Tensor) -> TagReceive:
        """Post a receive; into belongs to the channel until the receive is settled."""
        ...

    async def arrival(self, receive: TagReceive) -> int:
        """Wait for a posted receive and return how many bytes came. Cancelling changes nothing."""
        ...

    def close(self) -> None:
        """End the link, without waiting for the peer."""
        ...


def _header_tag(seq_no: int) -> int:
    return seq_no << 1


def _payload_tag(seq_no: int) -> int:
    return seq_no << 1 | 1


class TagSender:
    """The sending end; see base.Sender."""

    def __init__(self, channel: TagChannel, sequence: OutboundSequence) -> None:
        self.transport = ""
        self.rtt_us = 0
        self._channel = channel
        self._sequence = sequence
        self._header = torch.zeros(HEADER_BYTES, dtype=torch.uint8)

    async def greet(self) -> None:
        """Connect and exchange pings with the receiving end."""
        self._channel.connect()
        ping, pong = torch.zeros(1, dtype=torch.uint8), torch.zeros(1, dtype=torch.uint8)
        for _ in range(_NUM_PINGS):
            begin = time.perf_counter()
            answer = self._channel.post(_PONG, pong)
            await self._channel.send((_PING, ping))
            await self._channel.arrival(answer)
            self.rtt_us = round((time.perf_counter() - begin) * 1e6)
        self.transport = self._channel.transports

    async def send(self, activation: Activation, payload: torch.Tensor) -> None:
        """Send one activation."""
        with self._sequence.next(activation, payload) as header:
            await self._transmit(activation.seq_no, header, payload)

    async def close(self) -> None:
        """Close the link."""
        self._channel.close()

    async def _transmit(self, seq_no: int, header: bytes, payload: torch.Tensor) -> None:
        self._header.numpy()[:] = np.frombuffer(header, dtype=np.uint8)
        try:
            await self._channel.send(
                (_header_tag(seq_no), self._header), (_payload_tag(seq_no), payload)
            )
        except LinkError:
            self._channel.close()
            raise


class TagReceiver:
    """The receiving end; see base.Receiver."""

    def __init__(self, channel: TagChannel, spec: LinkSpec) -> None:
        self._channel = channel
        self._sequence = InboundSequence(spec)
        self._header = torch.zeros(HEADER_BYTES, dtype=torch.uint8)
        self._header_receive: TagReceive | None = None
        self._payload_receive: TagReceive | None = None
        self._payload = torch.empty(0, dtype=torch.uint8)
        """Where the payload goes while its receive is posted."""

    async def greet(self) -> None:
        """Answer the pings of the sending end.

        Connects only after the first one: with UCX 1.21 over TCP, two ends that connect to each
        other at the same moment may wait for ever.
        """
        ping = torch.zeros(1, dtype=torch.uint8)
        for index in range(_NUM_PINGS):
            await self._channel.arrival(self._channel.post(_PING, ping))
            if index == 0:
                self._channel.connect()
            await self._channel.send((_PONG, ping))

    async def receive(self, into: torch.Tensor) -> Activation:
        """Wait for the next activation."""
        self._sequence.check_into(into)
        try:
            return await self._receive(into[: self._sequence.spec.max_bytes])
        except LinkError:
            self._channel.close()
            raise
        except asyncio.CancelledError:
            self._take_back()
            raise

    async def close(self) -> None:
        """Close the link."""
        self._channel.close()

    async def _receive(self, into: torch.Tensor) -> Activation:
        seq_no = self._sequence.seq_no
        if self._header_receive is None:
            self._header_receive = self._channel.post(_header_tag(seq_no), self._header)
        if self._payload_receive is None:
            self._payload = into
            self._payload_receive = self._channel.post(_payload_tag(seq_no), into)
        length = await self._channel.arrival(self._header_receive)
        header = self._sequence.open(self._header.numpy()[:length].tobytes())
        received = await self._channel.arrival(self._payload_receive)
        activation = self._sequence.finish(header, self._payload, received)
        if self._payload.data_ptr() != into.data_ptr():
            into[:received].copy_(self._payload[:received])
        self._header_receive = self._payload_receive = None
        return activation

    def _take_back(self) -> None:
        """Give the payload's buffer back, unless its message is just being written to it."""
        receive = self._payload_receive
        if receive is None:
            return
        if receive.cancel():
            self._payload_receive = None
        elif receive.settled:
            self._payload = self._payload.clone()
