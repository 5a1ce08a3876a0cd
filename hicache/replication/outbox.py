"""What this replica did and has not told the others yet. Pure.

Bounded: while Redis is away longer than the bound lasts, all is dropped and one Lost takes its
place, so that the others scan.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TypeVar

from hicache.changes import Change, ChangeKind, Stored
from hicache.replication.event_codec import encode_event, packed
from hicache.replication.events import (
    Committed,
    Event,
    Gone,
    Leased,
    Lost,
    Released,
    Told,
    Unlinked,
)

MAX_WAITING_BYTES = 8 << 20
_MAX_PAGES = 256
"""In one event, so that it is well under 32 KiB."""

_T = TypeVar("_T")


class Outbox:
    """Owner of encoded events in order."""

    def __init__(self) -> None:
        self._events: list[bytes] = []
        self._num_bytes = 0

    def __len__(self) -> int:
        return len(self._events)

    def add(self, event: Event) -> None:
        """Queue an event."""
        data = encode_event(event)
        if self._num_bytes + len(data) > MAX_WAITING_BYTES:
            self.clear()
            data = encode_event(Lost())
        self._events.append(data)
        self._num_bytes += len(data)

    def changed(self, change: Change) -> None:
        """Queue a change of the cache, unless the others find it out by themselves."""
        if not change.by_time:
            for event in _events_of(change):
                self.add(event)

    def leased(self, lease_id: str, last: bytes | None, ttl_s: float) -> None:
        """Queue that a lease was given or renewed, or, without a last page, released."""
        if last is None:
            self.add(Released(lease_id=lease_id))
        else:
            self.add(Leased(lease_id=lease_id, last=last, ttl_s=ttl_s))

    def unlinked(self, digests: Iterable[bytes]) -> None:
        """Queue that pages are gone from Redis."""
        for part in _parts(tuple(digests)):
            self.add(Unlinked(digests=part))

    def take(self) -> list[bytes]:
        """Return all events, packed into pieces of at most 32 KiB; they wait no longer."""
        pieces = list(packed(self._events))
        self.clear()
        return pieces

    def put_back(self, pieces: list[bytes]) -> None:
        """Queue pieces again, before all else, because they could not be told."""
        self._events[:0] = pieces
        self._num_bytes += sum(map(len, pieces))

    def clear(self) -> None:
        """Drop all events."""
        self._events.clear()
        self._num_bytes = 0


def _events_of(change: Change) -> Iterator[Event]:
    match change.kind:
        case ChangeKind.COMMITTED:
            if change.stored is not None and change.namespace is not None:
                for pages in _parts(change.stored.pages):
                    stored = Stored(pages=pages, coverage=change.stored.coverage)
                    yield Committed(namespace=change.namespace, stored=stored)
        case ChangeKind.INVALIDATED | ChangeKind.EVICTED | ChangeKind.DELETED:
            if change.namespace is not None:
                for digests in _parts(change.digests):
                    yield Gone(
                        kind=change.kind,
                        namespace=change.namespace,
                        digests=digests,
                        num_bytes=change.num_bytes * len(digests) // len(change.digests),
                    )
        case _:
            is_match = change.kind is ChangeKind.MATCHED and change.digests
            last = change.digests[-1] if is_match else None
            yield Told(summary=change.summary, last=last)


def _parts(items: tuple[_T, ...]) -> Iterator[tuple[_T, ...]]:
    for at in range(0, len(items), _MAX_PAGES):
        yield items[at : at + _MAX_PAGES]
