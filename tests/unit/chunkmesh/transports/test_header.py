"""The activation header: what is written is read, and nothing else is."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from chunkmesh.errors import LinkError
from chunkmesh.transports import header
from chunkmesh.transports.base import Activation, LinkSpec

SPEC = LinkSpec(
    epoch=1 << 40,
    token=b"t" * 16,
    boundary_layer=15,
    hidden_size=576,
    dtype=torch.bfloat16,
    max_tokens=4096,
)
ACTIVATION = Activation(seq_no=7, num_tokens=32)


@given(seq_no=st.integers(0, 2**64 - 1), num_tokens=st.integers(1, 4096), with_sum=st.booleans())
def test_what_is_written_is_read(seq_no: int, num_tokens: int, with_sum: bool) -> None:
    """All values of a link must survive the 64 bytes."""
    activation = Activation(seq_no=seq_no, num_tokens=num_tokens)
    data = header.encode(SPEC, activation, seq_no if with_sum else None)
    assert len(data) == header.HEADER_BYTES
    read = header.decode(data)
    assert header.check(read, SPEC, seq_no) == activation
    assert read.payload_bytes == num_tokens * 576 * 2
    assert read.checksum == (seq_no if with_sum else None)


@given(st.binary(max_size=200))
def test_random_bytes_are_link_errors(data: bytes) -> None:
    """Whatever a stranger sends must end the link, never the process."""
    with pytest.raises(LinkError):
        header.decode(data)


@given(st.binary(min_size=60, max_size=60))
def test_random_bytes_behind_the_magic_are_link_errors(data: bytes) -> None:
    """A peer of another version or with a bug is turned down field by field."""
    with pytest.raises(LinkError):
        header.check(header.decode(b"CMAV" + data), SPEC, 7)


@pytest.mark.parametrize(
    ("at", "byte", "named"),
    [
        (0, 0, "begins with"),
        (4, 2, "version 2"),
        (7, 2, "flags"),
        (40, 1, "checksum"),
        (48, 1, "reserved"),
        (63, 1, "reserved"),
    ],
)
def test_a_changed_byte_is_named(at: int, byte: int, named: str) -> None:
    """The reason in the log must lead to the field."""
    data = bytearray(header.encode(SPEC, ACTIVATION))
    data[at] = byte
    with pytest.raises(LinkError, match=named):
        header.decode(bytes(data))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("epoch", 3),
        ("seq_no", 8),
        ("hidden_size", 577),
        ("dtype_code", 1),
        ("num_tokens", 0),
        ("num_tokens", 4097),
        ("payload_bytes", 32 * 576 * 2 - 1),
    ],
)
def test_a_wrong_field_is_named(field: str, value: int) -> None:
    """Every field that the ends agreed on is compared."""
    right = header.decode(header.encode(SPEC, ACTIVATION))
    wrong = dataclasses.replace(right, **{field: value})
    with pytest.raises(LinkError, match=f"{field} {value}"):
        header.check(wrong, SPEC, 7)


def test_a_shorter_payload_is_refused() -> None:
    """UCX takes a shorter message silently; the tail would be an older activation's."""
    read = header.decode(header.encode(SPEC, ACTIVATION))
    into = torch.zeros(SPEC.max_bytes, dtype=torch.uint8)
    header.check_payload(read, into, read.payload_bytes)
    with pytest.raises(LinkError, match="header says 36864"):
        header.check_payload(read, into, read.payload_bytes - 1)


def test_a_flipped_bit_is_refused_with_a_checksum() -> None:
    """The checksum covers exactly the payload, not the rest of the slot."""
    into = torch.arange(SPEC.max_bytes, dtype=torch.int64).to(torch.uint8)
    size = 32 * 576 * 2
    data = header.encode(SPEC, ACTIVATION, header.checksum(into[:size]))
    read = header.decode(data)
    into[size] ^= 1
    header.check_payload(read, into, size)
    into[size - 1] ^= 1
    with pytest.raises(LinkError, match="checksum"):
        header.check_payload(read, into, size)
