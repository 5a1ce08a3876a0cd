"""Ranges of what a worker says of itself; whoever reaches the internal port may have sent it."""

from __future__ import annotations

from chunkmesh.errors import InvalidRequest
from chunkmesh.v1 import stage_pb2 as pb

_MAX_DIGEST_BYTES = 64
_MOST_CHARACTERS = {
    "incarnation": 64,
    "data_address": 300,
    "peer": 300,
    "transport": 32,
    "device": 256,
}
"""Of texts that are shown in terminals and logs of others."""
_MOST_REASON_CHARACTERS = 1000
_RANGES = {
    "hidden_size": (1, 1 << 24),
    "kv_bytes_per_token": (1, 1 << 32),
    "kv_capacity_tokens": (0, 1 << 28),
    "host_capacity_tokens": (0, 1 << 31),
}
"""The scheduler has a few bytes for each page of a pool, and tells sums of these in messages."""


def check_hello(message: pb.Hello) -> None:
    """Refuse amounts and texts that could not be kept or told.

    Raises:
        InvalidRequest: one is out of range; names it.
    """
    for name, (least, most) in _RANGES.items():
        value = getattr(message, name)
        if not least <= value <= most:
            raise InvalidRequest(f"{name} is {value}, must be from {least} to {most}")
    for name, most in _MOST_CHARACTERS.items():
        _check_text(name, getattr(message, name), most)
    for backend in message.backends:
        for name in ("operation", "name", "reason"):
            _check_text(f"backends.{name}", getattr(backend, name), _MOST_REASON_CHARACTERS)
    others = (message.embedding_digest, message.head_digest, message.config_digest)
    longest = max(map(len, (*message.layer_digests, *others)))
    if longest > _MAX_DIGEST_BYTES:
        raise InvalidRequest(f"a digest of {longest} bytes, at most {_MAX_DIGEST_BYTES}")


def _check_text(name: str, text: str, most: int) -> None:
    if len(text) > most or not text.isprintable():
        raise InvalidRequest(f"{name} is {text[:most]!a}, must be {most} printable characters")
