"""The event stream in Redis: a capped log to which every replica appends what it did.

Blocking, in the thread of the store that is handed in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from chunkmesh.errors import CacheFault
from chunkmesh.kv_admin import KvAdmin
from chunkmesh.kv_store import KvStore

KEY = b"cm-events"
MAX_ENTRIES = 4096
"""Kept, a few more at times; of at most 32 KiB each, and far less as a rule."""
READ_ENTRIES = 64
"""At once."""
_VERSION = b"1"
_START = b"0-0"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """What a replica did in a short while."""

    entry_id: bytes
    replica: bytes
    """Who told it; empty if the entry is none of this version."""
    events: bytes


def append(store: KvStore, replica: bytes, pieces: Sequence[bytes]) -> list[bytes]:
    """Append entries; return their ids.

    Raises:
        CacheFault: Redis does not answer, or is full.
    """
    entries = [{b"v": _VERSION, b"r": replica, b"e": piece} for piece in pieces]
    return KvAdmin(store).append(KEY, entries, max_entries=MAX_ENTRIES)


def join(store: KvStore, replica: bytes, piece: bytes) -> bytes:
    """Append a first entry; return the place behind which all that comes later is found.

    In a Redis that is full that is the newest entry, or the start of a stream to come.

    Raises:
        CacheFault: Redis does not answer.
    """
    try:
        return append(store, replica, [piece])[-1]
    except CacheFault:
        return KvAdmin(store).last_entry(KEY) or _START


def read(store: KvStore, place: bytes) -> list[Entry] | None:
    """Return the next entries behind a place, the last one read; None if some were cut off.

    Raises:
        CacheFault: Redis does not answer.
    """
    admin = KvAdmin(store)
    entries = admin.read_after(KEY, place, READ_ENTRIES)
    if entries and not admin.has_entry(KEY, place):
        return None
    return [_entry(entry_id, fields) for entry_id, fields in entries]


def _entry(entry_id: bytes, fields: dict[bytes, bytes]) -> Entry:
    replica, events = fields.get(b"r", b""), fields.get(b"e", b"")
    if fields.get(b"v") != _VERSION:
        replica = events = b""
    return Entry(entry_id=entry_id, replica=replica, events=events)
