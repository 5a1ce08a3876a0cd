"""What a link does with bytes that are no valid activation: it breaks, on every transport."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports import header
from chunkmesh.transports.base import Activation, LinkSpec
from tests.transport_pairs import (
    DEADLINE_S,
    Pair,
    connect,
    make_payload,
    make_spec,
    new_buffer,
    transmit,
)


def _header(spec: LinkSpec, num_tokens: int = 2, **changes: object) -> bytes:
    """Encode a header of a changed spec or activation."""
    seq_no = changes.pop("seq_no", 0)
    changed = dataclasses.replace(spec, **changes)  # type: ignore[arg-type]
    return header.encode(changed, Activation(seq_no=int(str(seq_no)), num_tokens=num_tokens))


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"epoch": 99}, "epoch"),
        ({"seq_no": 1}, "seq_no"),
        ({"hidden_size": 4}, "hidden_size"),
        ({"dtype": torch.bfloat16}, "dtype"),
        ({"num_tokens": 17}, "num_tokens"),
        ({"num_tokens": 0}, "num_tokens"),
        ({"num_tokens": 1}, "payload"),
    ],
)
async def test_a_wrong_header_drops_the_link(
    pair: Pair, change: dict[str, object], named: str
) -> None:
    """Anything unexpected means that the ends disagree: nothing after it can be trusted."""
    spec = make_spec()
    sender, receiver = await connect(pair, spec)
    payload = make_payload(spec, 2, 1)
    sending = asyncio.create_task(transmit(sender, pair, _header(spec, **change), payload))  # type: ignore[arg-type]
    with pytest.raises(LinkError, match=named):
        await asyncio.wait_for(receiver.receive(new_buffer(spec)), DEADLINE_S)
    await asyncio.wait_for(sending, DEADLINE_S)
    with pytest.raises(LinkError):
        await asyncio.wait_for(receiver.receive(new_buffer(spec)), DEADLINE_S)


async def test_a_shorter_payload_is_never_taken(pair: Pair) -> None:
    """The tail of the slot would be an older activation's: UCX takes such a message silently."""
    spec = make_spec()
    sender, receiver = await connect(pair, spec)
    data = _header(spec, num_tokens=3)
    sending = asyncio.create_task(transmit(sender, pair, data, make_payload(spec, 2, 1)))
    receiving = asyncio.create_task(receiver.receive(new_buffer(spec)))
    await asyncio.wait([receiving], timeout=0.2)
    await sender.close()
    reason = "gone" if pair.upstream.name == "grpc" else "payload of 64 bytes, header says 96"
    with pytest.raises(LinkError, match=reason):
        await asyncio.wait_for(receiving, DEADLINE_S)
    await asyncio.wait_for(sending, DEADLINE_S)


async def test_garbage_for_a_header_drops_the_link(pair: Pair) -> None:
    """A stranger on the link must not be taken for a stage."""
    spec = make_spec()
    sender, receiver = await connect(pair, spec)
    sending = asyncio.create_task(transmit(sender, pair, b"\x00" * 64, make_payload(spec, 2, 1)))
    with pytest.raises(LinkError, match="begins with"):
        await asyncio.wait_for(receiver.receive(new_buffer(spec)), DEADLINE_S)
    await asyncio.wait_for(sending, DEADLINE_S)


async def test_an_oversize_payload_drops_the_link(pair: Pair) -> None:
    """More bytes than a slot holds must never be written behind it."""
    spec = make_spec()
    sender, receiver = await connect(pair, spec)
    payload = torch.zeros(spec.max_bytes * 4, dtype=torch.uint8)
    data = _header(spec, num_tokens=16)
    sending = asyncio.create_task(transmit(sender, pair, data, payload))
    whole = torch.full((spec.max_bytes * 8,), 255, dtype=torch.uint8)
    with pytest.raises(LinkError):
        await asyncio.wait_for(receiver.receive(whole[: spec.max_bytes]), DEADLINE_S)
    await asyncio.wait_for(sending, DEADLINE_S)
    assert bool((whole[spec.max_bytes :] == 255).all())


async def test_a_wrong_checksum_drops_the_link(pair: Pair) -> None:
    """A flipped bit must not become a wrong token."""
    spec = make_spec()
    sender, receiver = await connect(pair, spec)
    payload = make_payload(spec, 2, 1)
    data = header.encode(spec, Activation(seq_no=0, num_tokens=2), header.checksum(payload) ^ 1)
    sending = asyncio.create_task(transmit(sender, pair, data, payload))
    with pytest.raises(LinkError, match="checksum"):
        await asyncio.wait_for(receiver.receive(new_buffer(spec)), DEADLINE_S)
    await asyncio.wait_for(sending, DEADLINE_S)
