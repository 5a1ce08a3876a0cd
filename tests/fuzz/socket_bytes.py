"""What strangers send to a port: pieces of HTTP/2, TLS, HTTP/1.1 and handshakes, spoilt, and noise.

Frames as in RFC 9113, header fields as literals of RFC 7541, so that servers read far into them
before they find out.
"""

from __future__ import annotations

import dataclasses
import random
import ssl
from collections.abc import Mapping

import torch

from chunkmesh.transports.base import LinkSpec
from chunkmesh.transports.handshake import Hello, encode_hello
from tests.fuzz.mutation import mutated

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
_MOST_PIECES = 3
_DATA, _HEADERS, _RESET, _SETTINGS, _PING, _GO_AWAY, _WINDOW, _CONTINUATION = (
    *(0, 1, 3, 4, 6, 7, 8, 9),
)
_END_STREAM, _END_HEADERS = 1, 4


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    """One connection."""

    pieces: tuple[bytes, ...]
    """Sent one after the other."""
    stays: bool
    """Whether it then says nothing more, and does not go either."""


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    """Return an HTTP/2 frame."""
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


def call(method: bytes, message: bytes = b"") -> bytes:
    """Return what an HTTP/2 client sends for a unary gRPC call."""
    fields = {
        b":method": b"POST",
        b":scheme": b"http",
        b":path": method,
        b":authority": b"localhost",
        b"content-type": b"application/grpc",
        b"te": b"trailers",
        b"grpc-timeout": b"1S",
    }
    body = b"\0" + len(message).to_bytes(4, "big") + message
    return (
        PREFACE
        + frame(_SETTINGS, 0, 0, b"\0\3\0\0\0\x64")
        + frame(_WINDOW, 0, 0, (1 << 20).to_bytes(4, "big"))
        + frame(_HEADERS, _END_HEADERS, 1, _packed(fields))
        + frame(_DATA, _END_STREAM, 1, body)
        + frame(_PING, 0, 0, bytes(8))
    )


def _packed(fields: Mapping[bytes, bytes]) -> bytes:
    return b"".join(
        b"\0" + bytes([len(name)]) + name + bytes([len(value)]) + value
        for name, value in fields.items()
    )


def client_hello() -> bytes:
    """Return the first bytes of a TLS client that speaks HTTP/2."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.set_alpn_protocols(["h2"])
    incoming, outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
    connection = context.wrap_bio(incoming, outgoing, server_hostname="localhost")
    try:
        connection.do_handshake()
    except ssl.SSLWantReadError:
        return outgoing.read()
    raise AssertionError("a handshake without a server")


def _link_hello() -> bytes:
    spec = LinkSpec(
        epoch=1,
        token=bytes(16),
        boundary_layer=1,
        hidden_size=8,
        dtype=torch.float32,
        max_tokens=64,
    )
    hello = encode_hello(Hello(spec=spec, address=b"a" * 40))
    return len(hello).to_bytes(2, "little") + hello


SEEDS = (
    call(b"/grpc.health.v1.Health/Check"),
    call(b"/chunkmesh.v1.Generation/Generate", b"\x12\x05hello"),
    call(b"/chunkmesh.v1.StageControl/Attach"),
    call(b"/chunkmesh.v1.HiCache/GetStats"),
    call(b"/chunkmesh.v1.DataPlane/Link", b"\x0a\x20" + bytes(32)),
    PREFACE + frame(_SETTINGS, 0, 0, b"") * 50,
    PREFACE + frame(_HEADERS, 0, 1, b"\0\1a\1b") + frame(_CONTINUATION, 0, 1, b"\0\1c\1d") * 50,
    PREFACE + b"".join(frame(_RESET, 0, stream, bytes(4)) for stream in range(1, 99, 2)),
    PREFACE + frame(_GO_AWAY, 0, 0, bytes(8)),
    client_hello(),
    client_hello(),
    b"GET /ready HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"POST /metrics HTTP/1.1\r\nHost: a\r\nContent-Length: 99999999999\r\n\r\nx",
    b"GET / HTTP/1.1\r\nTransfer-Encoding: chunked\r\nHost: a\r\n\r\nffffffff\r\nx",
    _link_hello(),
    b"*2\r\n$3\r\nGET\r\n$1\r\na\r\n",
)
_WORDS = (PREFACE, b"\r\n\r\n", b"\x16\x03\x01\x02\x00", b"CMLH", b"\xff" * 9)
_mutated = mutated(*SEEDS, words=_WORDS)


def draw(random_: random.Random) -> Attack:
    """Return noise, a message that is cut off, or one that is changed, in one piece or more."""
    kind = random_.random()
    if kind < 0.2:
        data = random_.randbytes(random_.choice((1, 9, 100, 5000, 1 << 16)))
    elif kind < 0.5:
        seed = random_.choice(SEEDS)
        data = seed[: random_.randint(0, len(seed))]
    else:
        data = _mutated(random_)
    ends = sorted(random_.randint(0, len(data)) for _ in range(random_.randrange(_MOST_PIECES)))
    pieces = [data[begin:end] for begin, end in zip((0, *ends), (*ends, len(data)), strict=True)]
    return Attack(pieces=tuple(pieces), stays=random_.random() < 0.1)
