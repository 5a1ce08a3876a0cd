"""The order of messages on a tag link, over a channel that only notes them."""

from __future__ import annotations

import asyncio

import pytest
import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import Activation
from chunkmesh.transports.sequence import OutboundSequence
from chunkmesh.transports.tag_links import TagReceiver, TagSender
from tests.transport_pairs import make_payload, make_spec


class FakeReceive:
    """A posted receive that arrives when the test says so."""

    def __init__(self, into: torch.Tensor) -> None:
        self.into = into
        self.length = 0
        self.arrived = asyncio.Event()
        self.settled = False

    def deliver(self, data: torch.Tensor) -> None:
        """Let a message come."""
        self.into[: data.numel()] = data
        self.length = data.numel()
        self.settled = True
        self.arrived.set()

    def cancel(self) -> bool:
        """Take it back if nothing came."""
        return not self.settled


class FakeChannel:
    """Notes what a link end does."""

    transports = "fake"

    def __init__(self) -> None:
        self.notes: list[str] = []
        self.posted: dict[int, FakeReceive] = {}

    def connect(self) -> None:
        """Note it."""
        self.notes.append("connect")

    async def send(self, *messages: tuple[int, torch.Tensor]) -> None:
        """Note tags and sizes."""
        self.notes += [f"send {tag} {tensor.numel()}" for tag, tensor in messages]

    def post(self, tag: int, into: torch.Tensor) -> FakeReceive:
        """Note the tag."""
        self.notes.append(f"post {tag}")
        self.posted[tag] = FakeReceive(into)
        return self.posted[tag]

    async def arrival(self, receive: FakeReceive) -> int:
        """Wait for the test."""
        await receive.arrived.wait()
        return receive.length

    def close(self) -> None:
        """Note it."""
        self.notes.append("close")


async def step() -> None:
    """Let tasks run until they wait."""
    for _ in range(3):
        await asyncio.sleep(0)


async def test_the_receiving_end_connects_only_after_the_first_ping() -> None:
    """Two ends that connect to each other at once can hang in UCX's TCP transport."""
    channel = FakeChannel()
    receiver = TagReceiver(channel, make_spec())  # type: ignore[arg-type]
    greeting = asyncio.create_task(receiver.greet())
    await step()
    assert channel.notes == ["post 4294967294"]
    channel.posted[0xFFFF_FFFE].deliver(torch.zeros(1, dtype=torch.uint8))
    await step()
    assert channel.notes[1:3] == ["connect", "send 4294967295 1"]
    greeting.cancel()
    await asyncio.wait([greeting])


async def test_both_receives_are_posted_before_anything_comes() -> None:
    """A payload goes straight into its slot, without a copy or a round trip."""
    channel = FakeChannel()
    spec = make_spec()
    receiver = TagReceiver(channel, spec)  # type: ignore[arg-type]
    into = torch.zeros(spec.max_bytes, dtype=torch.uint8)
    receiving = asyncio.create_task(receiver.receive(into))
    await step()
    assert channel.notes == ["post 0", "post 1"]
    assert channel.posted[1].into.data_ptr() == into.data_ptr()
    receiving.cancel()
    await asyncio.wait([receiving])


async def test_a_short_header_drops_the_link() -> None:
    """The bytes behind it would be the last header's."""
    channel = FakeChannel()
    spec = make_spec()
    receiver = TagReceiver(channel, spec)  # type: ignore[arg-type]
    into = torch.zeros(spec.max_bytes, dtype=torch.uint8)
    receiving = asyncio.create_task(receiver.receive(into))
    await step()
    channel.posted[0].deliver(torch.zeros(40, dtype=torch.uint8))
    with pytest.raises(LinkError, match="header of 40 bytes"):
        await receiving
    assert channel.notes[-1] == "close"


async def test_header_and_payload_have_tags_of_their_own() -> None:
    """Messages of neighbouring activations can never be taken for each other."""
    channel = FakeChannel()
    spec = make_spec()
    sender = TagSender(channel, OutboundSequence(spec))  # type: ignore[arg-type]
    for seq_no in range(2):
        activation = Activation(seq_no=seq_no, num_tokens=2)
        await sender.send(activation, make_payload(spec, 2, seq_no))
    assert channel.notes == ["send 0 64", "send 1 64", "send 2 64", "send 3 64"]
