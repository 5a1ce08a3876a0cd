"""The bytes of events, also hostile ones."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chunkmesh.coverage import MAX_LAYER_BYTES, Coverage, layer_mask
from hicache.changes import ChangeKind, Stored, Summary
from hicache.replication.event_codec import (
    MAX_EVENT_BYTES,
    decode_events,
    encode_event,
    packed,
)
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
from tests.page_samples import NAMESPACE, chain

DIGESTS = chain(3)
SPLIT = Coverage(
    layers=layer_mask(0, 2) | layer_mask(70, 80), model_layers=80, layer_bytes=MAX_LAYER_BYTES
)
COMMITTED = Committed(
    namespace=NAMESPACE,
    stored=Stored(
        pages=(
            (DIGESTS[0], NAMESPACE, 0),
            (DIGESTS[1], DIGESTS[0], -7),
            (DIGESTS[2], bytes(range(32)), 2**31 - 1),
        ),
        coverage=SPLIT,
    ),
)
TOLD = Told(
    summary=Summary(
        kind=ChangeKind.MATCHED,
        namespace=NAMESPACE,
        first=DIGESTS[0],
        num_pages=3,
        num_queried_pages=5,
        num_bytes=1 << 40,
    ),
    last=DIGESTS[2],
)
NOT_FOUND = Told(
    summary=Summary(
        kind=ChangeKind.MATCHED,
        namespace=None,
        first=None,
        num_pages=0,
        num_queried_pages=5,
        num_bytes=0,
    ),
    last=None,
)
EVENTS: list[Event] = [
    COMMITTED,
    Gone(kind=ChangeKind.EVICTED, namespace=NAMESPACE, digests=DIGESTS, num_bytes=9),
    Unlinked(digests=DIGESTS),
    TOLD,
    NOT_FOUND,
    Leased(lease_id="a-1", last=DIGESTS[2], ttl_s=60.5),
    Released(lease_id="a-1"),
    Cleared(num_pages=2**40, num_bytes=2**60),
    KeptChanged(),
    Described(),
    Joined(),
    Lost(),
    Compared(),
]


def test_what_was_written_is_read() -> None:
    """All kinds, one behind the other."""
    data = b"".join(map(encode_event, EVENTS))
    assert EVENTS == list(decode_events(data))


def test_pages_of_absurd_size_are_passed_over() -> None:
    """Sums of such sizes would not fit into any message."""
    coverage = dataclasses.replace(SPLIT, layer_bytes=MAX_LAYER_BYTES + 1)
    stored = dataclasses.replace(COMMITTED.stored, coverage=coverage)
    event = dataclasses.replace(COMMITTED, stored=stored)
    assert [None] == list(decode_events(encode_event(event)))


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_every_cut_is_noticed(event: Event) -> None:
    """A length that does not fit, or a body that ends too early, is no event."""
    data = encode_event(event)
    for length in range(1, len(data)):
        assert [None] == list(decode_events(data[:length]))


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        (0, b""),
        (99, b"later"),
        (8, b"not empty"),
        (1, encode_event(COMMITTED)[5:50]),
        (1, encode_event(COMMITTED)[5:-1]),
        (1, NAMESPACE + bytes(12)),
        (2, encode_event(EVENTS[1])[5:46]),
        (2, b"\x02" + encode_event(EVENTS[1])[6:]),
        (2, b"\xff" + encode_event(EVENTS[1])[6:]),
        (3, DIGESTS[0][:31]),
        (4, b"\x04" + encode_event(TOLD)[6:]),
        (5, encode_event(EVENTS[5])[5:45]),
        (5, encode_event(EVENTS[5])[5:45] + b"\xff"),
        (6, b""),
        (6, b"a" * 65),
        (7, bytes(15)),
    ],
)
def test_nonsense_is_passed_over(kind: int, body: bytes) -> None:
    """What comes behind it is read."""
    data = bytes([kind]) + len(body).to_bytes(4, "little") + body
    assert [None, Joined()] == list(decode_events(data + encode_event(Joined())))


@given(st.binary(max_size=300))
def test_nothing_is_raised(data: bytes) -> None:
    """Whatever stands in Redis."""
    list(decode_events(data))


@given(st.integers(1, 7), st.binary(max_size=300))
def test_nothing_is_raised_by_bodies(kind: int, body: bytes) -> None:
    """Whatever follows a head that is right."""
    (event,) = decode_events(bytes([kind]) + len(body).to_bytes(4, "little") + body)
    if isinstance(event, Committed):
        assert event.stored.coverage.is_sound
        assert event.stored.pages


def test_events_are_packed_in_order() -> None:
    """No piece is over the limit, but for an event that is so alone."""
    events = [bytes([index]) * 10_000 for index in range(7)] + [b"x" * 40_000, b"y"]
    pieces = list(packed(events))
    assert b"".join(events) == b"".join(pieces)
    assert [30_000, 30_000, 10_000, 40_000, 1] == [len(piece) for piece in pieces]
    assert MAX_EVENT_BYTES == 32 << 10
    assert [] == list(packed([]))
