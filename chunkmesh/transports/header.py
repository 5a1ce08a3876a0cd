"""The 64-byte header in front of every activation payload: encoding and strict checks.

Every transport sends it unchanged, so one set of checks decides whether an activation is taken.
Nothing unexpected is repaired: the link is dropped.
"""

from __future__ import annotations

import dataclasses
import struct

import torch
import xxhash

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import Activation, LinkSpec

HEADER_BYTES = 64
VERSION = 1

_MAGIC = b"CMAV"
_LAYOUT = struct.Struct("<4sHBBQQIIQQ16s")
_RESERVED = bytes(16)
_FLAG_CHECKSUM = 1
_KNOWN_FLAGS = _FLAG_CHECKSUM

DTYPE_CODES = {torch.float32: 1, torch.bfloat16: 2, torch.float16: 3}
"""Element types on the wire, as in chunkmesh.v1.Dtype."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """What a header says; whether it fits the link is checked by check."""

    epoch: int
    seq_no: int
    num_tokens: int
    hidden_size: int
    dtype_code: int
    payload_bytes: int
    checksum: int | None
    """xxh3-64 of the payload, None when the sender computed none."""


def checksum(payload: torch.Tensor) -> int:
    """Return the xxh3-64 of a flat uint8 tensor on the CPU."""
    return xxhash.xxh3_64_intdigest(payload.numpy().data)


def encode(spec: LinkSpec, activation: Activation, payload_checksum: int | None = None) -> bytes:
    """Return the header of an activation of this link."""
    return _LAYOUT.pack(
        _MAGIC,
        VERSION,
        DTYPE_CODES[spec.dtype],
        0 if payload_checksum is None else _FLAG_CHECKSUM,
        spec.epoch,
        activation.seq_no,
        activation.num_tokens,
        spec.hidden_size,
        payload_bytes(spec, activation),
        payload_checksum or 0,
        _RESERVED,
    )


def payload_bytes(spec: LinkSpec, activation: Activation) -> int:
    """Return how long the payload of an activation is."""
    return activation.num_tokens * spec.hidden_size * spec.dtype.itemsize


def decode(data: bytes) -> Header:
    """Take a header apart.

    Raises:
        LinkError: not 64 bytes, or magic, version, flags or reserved bytes are unexpected.
    """
    if len(data) != HEADER_BYTES:
        raise LinkError(f"activation header of {len(data)} bytes, expected {HEADER_BYTES}")
    magic, version, dtype, flags, epoch, seq_no, tokens, hidden, size, digest, reserved = (
        _LAYOUT.unpack(data)
    )
    if magic != _MAGIC:
        raise LinkError(f"activation header begins with {magic!r}, expected {_MAGIC!r}")
    if version != VERSION:
        raise LinkError(f"activation header of version {version}, expected {VERSION}")
    if flags & ~_KNOWN_FLAGS:
        raise LinkError(f"activation header with unknown flags {flags:#x}")
    if reserved != _RESERVED:
        raise LinkError("activation header with reserved bytes in use")
    if digest and not flags & _FLAG_CHECKSUM:
        raise LinkError("activation header with a checksum but without its flag")
    return Header(
        epoch=epoch,
        seq_no=seq_no,
        num_tokens=tokens,
        hidden_size=hidden,
        dtype_code=dtype,
        payload_bytes=size,
        checksum=digest if flags & _FLAG_CHECKSUM else None,
    )


def check(header: Header, spec: LinkSpec, seq_no: int) -> Activation:
    """Return what the header announces, which is the activation seq_no of the link.

    Raises:
        LinkError: any field differs from what the link agreed on; names the field.
    """
    expected = {
        "epoch": spec.epoch,
        "seq_no": seq_no,
        "hidden_size": spec.hidden_size,
        "dtype_code": DTYPE_CODES[spec.dtype],
    }
    for field, value in expected.items():
        if getattr(header, field) != value:
            raise LinkError(f"activation with {field} {getattr(header, field)}, expected {value}")
    if not 0 < header.num_tokens <= spec.max_tokens:
        raise LinkError(
            f"activation with num_tokens {header.num_tokens}, limit 1 to {spec.max_tokens}"
        )
    activation = Activation(seq_no=seq_no, num_tokens=header.num_tokens)
    size = payload_bytes(spec, activation)
    if header.payload_bytes != size:
        raise LinkError(f"activation with payload_bytes {header.payload_bytes}, expected {size}")
    return activation


def check_payload(header: Header, into: torch.Tensor, received_bytes: int) -> None:
    """Compare a received payload, at the front of into, with its header.

    Raises:
        LinkError: it has another length or another checksum than announced.
    """
    if received_bytes != header.payload_bytes:
        raise LinkError(
            f"activation payload of {received_bytes} bytes, header says {header.payload_bytes}"
        )
    if header.checksum is None:
        return
    payload = into[:received_bytes]
    found = checksum(payload if payload.device.type == "cpu" else payload.cpu())
    if found != header.checksum:
        raise LinkError(f"activation checksum {found:#x}, header says {header.checksum:#x}")
