"""The handshake: bounded, exact, and safe against anything."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chunkmesh.errors import LinkError
from chunkmesh.transports import handshake
from chunkmesh.transports.base import LinkSpec
from chunkmesh.transports.handshake import Hello, Refusal

SPEC = LinkSpec(
    epoch=5,
    token=b"t" * 16,
    boundary_layer=15,
    hidden_size=576,
    dtype=torch.float32,
    max_tokens=512,
)


@given(
    epoch=st.integers(1, 2**64 - 1),
    token=st.binary(min_size=16, max_size=16),
    boundary=st.integers(1, 2**32 - 1),
    dtype=st.sampled_from([torch.float32, torch.bfloat16, torch.float16]),
    address=st.binary(max_size=handshake.MAX_ADDRESS_BYTES),
)
def test_what_is_said_is_heard(
    epoch: int, token: bytes, boundary: int, dtype: torch.dtype, address: bytes
) -> None:
    """Both ends must compare the same values."""
    spec = dataclasses.replace(SPEC, epoch=epoch, token=token, boundary_layer=boundary, dtype=dtype)
    data = handshake.encode_hello(Hello(spec=spec, address=address))
    assert len(data) <= handshake.MAX_BYTES
    assert handshake.decode_hello(data) == Hello(spec=spec, address=address)


@given(st.binary(max_size=5000))
def test_random_bytes_are_link_errors(data: bytes) -> None:
    """The data port is open to whoever reaches it."""
    for decode in (handshake.decode_hello, handshake.decode_answer):
        with pytest.raises(LinkError):
            decode(data)


@given(st.binary(max_size=300))
def test_random_bytes_behind_the_magic_give_an_answer_or_a_link_error(data: bytes) -> None:
    """A plausible beginning must not lead to any other error."""
    for magic, decode in (
        (b"CMLH\x01\x00\x01\x00", handshake.decode_hello),
        (b"CMLA\x01\x00", handshake.decode_answer),
    ):
        try:
            decode(magic + data)
        except LinkError:
            continue


@given(st.integers(0, 60), st.integers(0, 255))
def test_a_changed_hello_is_another_hello_or_a_link_error(at: int, byte: int) -> None:
    """No two messages mean the same link."""
    right = handshake.encode_hello(Hello(spec=SPEC, address=b"a" * 20))
    changed = bytearray(right)
    changed[at] = byte
    try:
        heard = handshake.decode_hello(bytes(changed))
    except LinkError:
        return
    assert handshake.encode_hello(heard) == bytes(changed)


def test_an_acceptance_carries_the_address() -> None:
    """The dialling end connects to what stands there."""
    assert handshake.decode_answer(handshake.encode_acceptance(b"ucx")) == b"ucx"


@pytest.mark.parametrize("refusal", list(Refusal))
def test_a_refusal_tells_only_its_reason(refusal: Refusal) -> None:
    """A stranger learns nothing of the link that is expected."""
    data = handshake.encode_refusal(refusal)
    assert len(data) == 12
    with pytest.raises(LinkError, match=f"refused: {refusal.name.lower()}"):
        handshake.decode_answer(data)


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (handshake.encode_acceptance(b"abc") + b"d", "it says 3"),
        (handshake.encode_acceptance(b"abc")[:-1], "it says 3"),
        (b"CMLA\x02\x00" + bytes(6), "version 2"),
        (b"CMLA\x01\x00\x63\x00" + bytes(4), "unknown code 99"),
        (b"CMLA\x01\x00\x00\x01" + bytes(4), "padding"),
        (b"", "0 bytes"),
    ],
)
def test_a_malformed_answer_is_named(data: bytes, named: str) -> None:
    """An operator must see what the other side sent."""
    with pytest.raises(LinkError, match=named):
        handshake.decode_answer(data)


@pytest.mark.parametrize("field", ["epoch", "boundary_layer", "hidden_size", "max_tokens"])
def test_zero_is_impossible(field: str) -> None:
    """A zero would make an empty link that accepts anything of size 0."""
    spec = dataclasses.replace(SPEC, **{field: 0})  # type: ignore[arg-type]
    data = handshake.encode_hello(Hello(spec=spec, address=b""))
    with pytest.raises(LinkError, match="of 0"):
        handshake.decode_hello(data)


@pytest.mark.parametrize(
    ("change", "refusal"),
    [
        ({}, None),
        ({"epoch": 6}, Refusal.EPOCH),
        ({"boundary_layer": 16}, Refusal.BOUNDARY),
        ({"hidden_size": 577}, Refusal.SHAPE),
        ({"dtype": torch.float16}, Refusal.SHAPE),
        ({"max_tokens": 513}, Refusal.SHAPE),
    ],
)
def test_links_are_compared_field_by_field(
    change: dict[str, object], refusal: Refusal | None
) -> None:
    """The reason says which agreement is missing."""
    offered = dataclasses.replace(SPEC, **change)  # type: ignore[arg-type]
    assert handshake.compare(offered, SPEC) == refusal
