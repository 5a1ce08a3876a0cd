"""What a neighbour may send to a worker's data port: headers, handshakes."""

from __future__ import annotations

import torch

from chunkmesh.errors import LinkError
from chunkmesh.transports import handshake, header
from chunkmesh.transports.base import Activation, LinkSpec
from tests.fuzz.mutation import mutated
from tests.fuzz.target import Target

SPEC = LinkSpec(
    epoch=7,
    token=bytes(range(16)),
    boundary_layer=15,
    hidden_size=64,
    dtype=torch.bfloat16,
    max_tokens=32,
)
_SEEDS = tuple(
    header.encode(SPEC, Activation(seq_no=3, num_tokens=tokens), digest)
    for tokens, digest in ((1, None), (32, 2**64 - 1))
)
_HELLOS = tuple(
    handshake.encode_hello(handshake.Hello(spec=SPEC, address=address))
    for address in (b"", b"ucx address", bytes(handshake.MAX_ADDRESS_BYTES))
)
_ACCEPTED = (handshake.encode_acceptance(), handshake.encode_acceptance(b"ucx address"))
_REFUSED = tuple(map(handshake.encode_refusal, handshake.Refusal))


def _check_header(data: bytes) -> bool:
    """What is taken for activation 3 says so in its bytes."""
    try:
        decoded = header.decode(data)
        activation = header.check(decoded, SPEC, 3)
    except LinkError:
        return False
    assert 0 < activation.num_tokens <= SPEC.max_tokens
    assert data == header.encode(SPEC, activation, decoded.checksum)
    return True


def _check_hello(data: bytes) -> bool:
    try:
        hello = handshake.decode_hello(data)
    except LinkError:
        return False
    assert data == handshake.encode_hello(hello)
    handshake.compare(hello.spec, SPEC)
    return True


def _check_answer(data: bytes) -> bool:
    try:
        address = handshake.decode_answer(data)
    except LinkError:
        return False
    assert data == handshake.encode_acceptance(address)
    return True


TARGETS = (
    Target(name="activation header", seeds=_SEEDS, check=_check_header, values=mutated(*_SEEDS)),
    Target(name="hello", seeds=_HELLOS, check=_check_hello, values=mutated(*_HELLOS)),
    Target(
        name="answer", seeds=_ACCEPTED, check=_check_answer, values=mutated(*_ACCEPTED, *_REFUSED)
    ),
)
