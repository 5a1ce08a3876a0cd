"""What two stages say to each other before the first activation: a bounded, fixed layout.

The dialling stage names the link it means; the other one answers with acceptance or a reason code.
Both may carry an opaque address of the transport. No message is longer than 4 KiB.
"""

from __future__ import annotations

import dataclasses
import enum
import struct

from chunkmesh.errors import LinkError
from chunkmesh.transports.base import TOKEN_BYTES, LinkSpec
from chunkmesh.transports.header import DTYPE_CODES

MAX_BYTES = 4096
VERSION = 1

_HELLO_MAGIC = b"CMLH"
_ANSWER_MAGIC = b"CMLA"
_HELLO = struct.Struct(f"<4sHBx{TOKEN_BYTES}sQIIIH2x")
_ANSWER = struct.Struct("<4sHBxH2x")
MAX_ADDRESS_BYTES = MAX_BYTES - _HELLO.size

_DTYPES = {code: dtype for dtype, code in DTYPE_CODES.items()}


class Refusal(enum.Enum):
    """Why a link was refused; all that a refused peer learns."""

    MALFORMED = 1
    TOKEN = 2
    EPOCH = 3
    BOUNDARY = 4
    SHAPE = 5


_REASONS = {refusal.value: refusal.name.lower() for refusal in Refusal}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Hello:
    """The first message of the dialling stage."""

    spec: LinkSpec
    address: bytes
    """Where the dialling end is reached inside the transport; may be empty."""


def encode_hello(hello: Hello) -> bytes:
    """Return the message that asks for a link."""
    spec = hello.spec
    fixed = _HELLO.pack(
        _HELLO_MAGIC,
        VERSION,
        DTYPE_CODES[spec.dtype],
        spec.token,
        spec.epoch,
        spec.boundary_layer,
        spec.hidden_size,
        spec.max_tokens,
        len(hello.address),
    )
    return fixed + hello.address


def decode_hello(data: bytes) -> Hello:
    """Take the message of a dialling stage apart.

    Raises:
        LinkError: its length, magic, version or a value is impossible.
    """
    _check_length(data, _HELLO.size)
    magic, version, dtype, token, epoch, boundary, hidden, tokens, size = _HELLO.unpack_from(data)
    _check_begin(magic, _HELLO_MAGIC, version)
    if dtype not in _DTYPES:
        raise LinkError(f"handshake with unknown dtype code {dtype}")
    if not (epoch and boundary and hidden and tokens):
        raise LinkError("handshake with an epoch, boundary, hidden size or max_tokens of 0")
    address = _rest(data, _HELLO.size, size)
    if data != _HELLO.pack(*_HELLO.unpack_from(data)) + address:
        raise LinkError("handshake with padding in use")
    spec = LinkSpec(
        epoch=epoch,
        token=token,
        boundary_layer=boundary,
        hidden_size=hidden,
        dtype=_DTYPES[dtype],
        max_tokens=tokens,
    )
    return Hello(spec=spec, address=address)


def encode_acceptance(address: bytes = b"") -> bytes:
    """Return the answer that accepts a link; address is where the accepting end is reached."""
    return _ANSWER.pack(_ANSWER_MAGIC, VERSION, 0, len(address)) + address


def encode_refusal(refusal: Refusal) -> bytes:
    """Return the answer that refuses a link."""
    return _ANSWER.pack(_ANSWER_MAGIC, VERSION, refusal.value, 0)


def decode_answer(data: bytes) -> bytes:
    """Return the address in an acceptance.

    Raises:
        LinkError: the link was refused, or the answer is malformed.
    """
    _check_length(data, _ANSWER.size)
    magic, version, code, size = _ANSWER.unpack_from(data)
    _check_begin(magic, _ANSWER_MAGIC, version)
    address = _rest(data, _ANSWER.size, size)
    if data != _ANSWER.pack(magic, version, code, size) + address:
        raise LinkError("handshake with padding in use")
    if code == 0:
        return address
    if address:
        raise LinkError("link refused with an address")
    raise LinkError(f"link refused: {_REASONS.get(code, f'unknown code {code}')}")


def compare(offered: LinkSpec, expected: LinkSpec) -> Refusal | None:
    """Return why an offered link is not the expected one, None if it is. Tokens are equal."""
    if offered.epoch != expected.epoch:
        return Refusal.EPOCH
    if offered.boundary_layer != expected.boundary_layer:
        return Refusal.BOUNDARY
    return None if offered == expected else Refusal.SHAPE


def _check_length(data: bytes, least: int) -> None:
    if not least <= len(data) <= MAX_BYTES:
        raise LinkError(f"handshake of {len(data)} bytes, limit {least} to {MAX_BYTES}")


def _check_begin(magic: bytes, expected: bytes, version: int) -> None:
    if magic != expected:
        raise LinkError(f"handshake begins with {magic!r}, expected {expected!r}")
    if version != VERSION:
        raise LinkError(f"handshake of version {version}, expected {VERSION}")


def _rest(data: bytes, begin: int, size: int) -> bytes:
    if len(data) != begin + size:
        raise LinkError(f"handshake with {len(data) - begin} address bytes, it says {size}")
    return data[begin:]
