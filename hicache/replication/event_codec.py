"""The bytes of events: a kind, a length and a body each, one behind the other. Pure.

Whatever is read back is treated as hostile: an event of an unknown kind or in another form comes as
None, and so does the rest where lengths do not fit.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from chunkmesh.coverage import MAX_MODEL_LAYERS, Coverage
from chunkmesh.pages import DIGEST_BYTES
from hicache.changes import ChangeKind, Stored, Summary
from hicache.replication.events import (
    Cleared,
    Committed,
    Compared,
    Described,
    Event,
    Gone,
    Joined,
    KeptChanged,
    Leased,
    Lost,
    Released,
    Told,
    Unlinked,
)

MAX_EVENT_BYTES = 32 << 10
_MAX_LEASE_ID_BYTES = 64
_MAX_TTL_MS = (1 << 32) - 1
"""No request can ask for more; a lease for ever would keep pages from being evicted."""
_MASK_BYTES = MAX_MODEL_LAYERS // 8
_NONE = bytes(DIGEST_BYTES)
_HEAD = struct.Struct("<BI")
_COMMITTED = struct.Struct("<32sHQH")
_PAGE = struct.Struct("<iB32s")
_GONE = struct.Struct("<B32sQ")
_TOLD = struct.Struct("<B32s32s32sQQQ")
_LEASED = struct.Struct("<Q32s")
_CLEARED = struct.Struct("<QQ")
_GOING = frozenset({ChangeKind.INVALIDATED, ChangeKind.EVICTED, ChangeKind.DELETED})
_EMPTY: dict[int, Event] = {
    8: KeptChanged(),
    9: Described(),
    10: Joined(),
    11: Lost(),
    12: Compared(),
}


def encode_event(event: Event) -> bytes:
    """Return the bytes of one event."""
    kind = _KINDS[type(event)]
    encode = _ENCODERS.get(kind)
    body = b"" if encode is None else encode(event)
    return _HEAD.pack(kind, len(body)) + body


def decode_events(data: bytes) -> Iterator[Event | None]:
    """Yield the events, None for each that cannot be read."""
    at = 0
    while at < len(data):
        if len(data) - at < _HEAD.size:
            yield None
            return
        kind, num_bytes = _HEAD.unpack_from(data, at)
        body = data[at + _HEAD.size : at + _HEAD.size + num_bytes]
        yield _decoded(kind, body) if len(body) == num_bytes else None
        at += _HEAD.size + num_bytes


def packed(events: Iterable[bytes]) -> Iterator[bytes]:
    """Yield encoded events joined to pieces of at most MAX_EVENT_BYTES, or one event."""
    piece: list[bytes] = []
    num_bytes = 0
    for event in events:
        if piece and num_bytes + len(event) > MAX_EVENT_BYTES:
            yield b"".join(piece)
            piece, num_bytes = [], 0
        piece.append(event)
        num_bytes += len(event)
    if piece:
        yield b"".join(piece)


def _decoded(kind: int, body: bytes) -> Event | None:
    decode = _DECODERS.get(kind)
    if decode is None:
        return None if body else _EMPTY.get(kind)
    try:
        return decode(body)
    except (struct.error, ValueError):
        return None


def _encode_committed(event: Committed) -> bytes:
    coverage = event.stored.coverage
    mask = coverage.layers.to_bytes((coverage.layers.bit_length() + 7) // 8, "little")
    head = _COMMITTED.pack(event.namespace, coverage.model_layers, coverage.layer_bytes, len(mask))
    parts = [head, mask]
    before = event.namespace
    for digest, parent, priority in event.stored.pages:
        parts.append(_PAGE.pack(priority, parent == before, digest))
        if parent != before:
            parts.append(parent)
        before = digest
    return b"".join(parts)


def _decode_committed(body: bytes) -> Event | None:
    namespace, model_layers, layer_bytes, mask_bytes = _COMMITTED.unpack_from(body)
    at = _COMMITTED.size + mask_bytes
    coverage = Coverage(
        layers=int.from_bytes(body[_COMMITTED.size : at], "little"),
        model_layers=model_layers,
        layer_bytes=layer_bytes,
    )
    if mask_bytes > _MASK_BYTES or not coverage.is_sound:
        return None
    pages = []
    before = namespace
    while at < len(body):
        priority, follows, digest = _PAGE.unpack_from(body, at)
        at += _PAGE.size
        parent = before
        if not follows:
            parent = _digest(body[at : at + DIGEST_BYTES])
            at += DIGEST_BYTES
        pages.append((digest, parent, priority))
        before = digest
    stored = Stored(pages=tuple(pages), coverage=coverage)
    return Committed(namespace=namespace, stored=stored) if pages else None


def _decode_gone(body: bytes) -> Event | None:
    value, namespace, num_bytes = _GONE.unpack_from(body)
    kind, digests = ChangeKind(value), _digests(body[_GONE.size :])
    if kind not in _GOING or not digests:
        return None
    return Gone(kind=kind, namespace=namespace, digests=digests, num_bytes=num_bytes)


def _decode_unlinked(body: bytes) -> Event | None:
    return Unlinked(digests=_digests(body))


def _encode_gone(event: Gone) -> bytes:
    head = _GONE.pack(event.kind.value, event.namespace, event.num_bytes)
    return head + b"".join(event.digests)


def _encode_unlinked(event: Unlinked) -> bytes:
    return b"".join(event.digests)


def _encode_told(event: Told) -> bytes:
    told = event.summary
    return _TOLD.pack(
        told.kind.value,
        told.namespace or _NONE,
        told.first or _NONE,
        event.last or _NONE,
        told.num_pages,
        told.num_queried_pages,
        told.num_bytes,
    )


def _decode_told(body: bytes) -> Event | None:
    value, namespace, first, last, num_pages, num_queried_pages, num_bytes = _TOLD.unpack(body)
    kind = ChangeKind(value)
    if kind in _GOING or kind is ChangeKind.COMMITTED:
        return None
    summary = Summary(
        kind=kind,
        namespace=None if namespace == _NONE else namespace,
        first=None if first == _NONE else first,
        num_pages=num_pages,
        num_queried_pages=num_queried_pages,
        num_bytes=num_bytes,
    )
    return Told(summary=summary, last=None if last == _NONE else last)


def _encode_leased(event: Leased) -> bytes:
    return _LEASED.pack(max(1, round(event.ttl_s * 1000)), event.last) + event.lease_id.encode()


def _decode_leased(body: bytes) -> Event | None:
    ttl_ms, last = _LEASED.unpack_from(body)
    if ttl_ms > _MAX_TTL_MS:
        return None
    return Leased(lease_id=_lease_id(body[_LEASED.size :]), last=last, ttl_s=ttl_ms / 1000)


def _encode_released(event: Released) -> bytes:
    return event.lease_id.encode()


def _decode_released(body: bytes) -> Event | None:
    return Released(lease_id=_lease_id(body))


def _encode_cleared(event: Cleared) -> bytes:
    return _CLEARED.pack(event.num_pages, event.num_bytes)


def _decode_cleared(body: bytes) -> Event | None:
    num_pages, num_bytes = _CLEARED.unpack(body)
    return Cleared(num_pages=num_pages, num_bytes=num_bytes)


def _digests(data: bytes) -> tuple[bytes, ...]:
    return tuple(_digest(data[at : at + DIGEST_BYTES]) for at in range(0, len(data), DIGEST_BYTES))


def _digest(data: bytes) -> bytes:
    """Return a digest.

    Raises:
        ValueError: it is cut off.
    """
    if len(data) != DIGEST_BYTES:
        raise ValueError(len(data))
    return data


def _lease_id(data: bytes) -> str:
    """Return a lease's id.

    Raises:
        ValueError: it is none.
    """
    if not 0 < len(data) <= _MAX_LEASE_ID_BYTES:
        raise ValueError(len(data))
    return data.decode("ascii")


_KINDS: dict[type[Event], int] = {
    Committed: 1,
    Gone: 2,
    Unlinked: 3,
    Told: 4,
    Leased: 5,
    Released: 6,
    Cleared: 7,
    **{type(event): kind for kind, event in _EMPTY.items()},
}
_ENCODERS: dict[int, Callable[[Any], bytes]] = {
    1: _encode_committed,
    2: _encode_gone,
    3: _encode_unlinked,
    4: _encode_told,
    5: _encode_leased,
    6: _encode_released,
    7: _encode_cleared,
}
_DECODERS: dict[int, Callable[[bytes], Event | None]] = {
    1: _decode_committed,
    2: _decode_gone,
    3: _decode_unlinked,
    4: _decode_told,
    5: _decode_leased,
    6: _decode_released,
    7: _decode_cleared,
}
