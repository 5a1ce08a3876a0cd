"""What stands in Redis beside pages: small hashes, a log, and pages' raw fields for inspection.

Keys begin with cm- and never with cm:, which is for pages. Blocking, as the store it uses is;
whatever is read back is checked by the caller.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from chunkmesh.errors import CacheFault
from chunkmesh.kv_pages import MAX_COMMAND_BYTES
from chunkmesh.kv_store import KvStore
from chunkmesh.page_record import LAYER_HEADER_BYTES, RECORD_FIELD, layer_field
from chunkmesh.stored_page import page_key

MAX_READ_BYTES = MAX_COMMAND_BYTES - (64 << 10)
"""Leaves room for the fields' names where the values go on in one message of 4 MiB."""
_BATCH_FIELDS = 1000
_MAX_DIGITS = len(str(1 << 63))


class KvAdmin:
    """Reads and writes through one store, in its thread."""

    def __init__(self, store: KvStore) -> None:
        self._store = store

    def read_hash(self, key: bytes) -> dict[bytes, bytes]:
        """Return all fields of a hash; empty if there is none.

        Raises:
            CacheFault: the server does not answer. All methods raise it.
        """
        (reply,) = self._store.run([(b"HGETALL", key)])
        flat = _bytes_list(reply)
        return dict(zip(flat[::2], flat[1::2], strict=True))

    def write_hash(
        self, key: bytes, fields: Mapping[bytes, bytes], *, ttl_s: int | None = None
    ) -> None:
        """Set fields of a hash, which from then on lives for ttl_s if that is given."""
        items = list(fields.items())
        batches = [items[at : at + _BATCH_FIELDS] for at in range(0, len(items), _BATCH_FIELDS)]
        commands: list[tuple[bytes, ...]] = [
            (b"HSET", key, *(part for item in batch for part in item)) for batch in batches
        ]
        if ttl_s is not None:
            commands.append((b"EXPIRE", key, b"%d" % ttl_s))
        if not all(isinstance(reply, int) for reply in self._store.run(commands)):
            raise CacheFault(f"Redis: {key.decode()} is no hash")

    def drop_fields(self, key: bytes, fields: Sequence[bytes]) -> None:
        """Remove fields of a hash."""
        self._store.run(
            [
                (b"HDEL", key, *fields[start : start + _BATCH_FIELDS])
                for start in range(0, len(fields), _BATCH_FIELDS)
            ]
        )

    def append(
        self, key: bytes, entries: Sequence[Mapping[bytes, bytes]], *, max_entries: int
    ) -> list[bytes]:
        """Append entries to a log, which keeps about the newest max_entries; return their ids."""
        command = (b"XADD", key, b"MAXLEN", b"~", b"%d" % max_entries, b"*")
        replies = self._store.run(
            [(*command, *(part for item in fields.items() for part in item)) for fields in entries]
        )
        ids = [reply for reply in replies if isinstance(reply, bytes)]
        if len(ids) < len(entries):
            raise CacheFault(f"Redis: {key.decode()} is no stream")
        return ids

    def read_after(
        self, key: bytes, entry_id: bytes, num_entries: int
    ) -> list[tuple[bytes, dict[bytes, bytes]]]:
        """Return the first entries (id, fields) of a log behind one, which need not be there."""
        (reply,) = self._store.run(
            [(b"XRANGE", key, b"(" + entry_id, b"+", b"COUNT", b"%d" % num_entries)]
        )
        return _entries(reply)

    def last_entry(self, key: bytes) -> bytes | None:
        """Return the id of a log's newest entry; None if it has none."""
        (reply,) = self._store.run([(b"XREVRANGE", key, b"+", b"-", b"COUNT", b"1")])
        return next((entry_id for entry_id, _ in _entries(reply)), None)

    def has_entry(self, key: bytes, entry_id: bytes) -> bool:
        """Whether a log still has an entry."""
        (reply,) = self._store.run([(b"XRANGE", key, entry_id, entry_id)])
        return bool(_entries(reply))

    def newest(self, key: bytes, num_entries: int) -> list[tuple[int, dict[bytes, bytes]]]:
        """Return the newest entries of a log, newest first, with their Unix times in ms."""
        (reply,) = self._store.run([(b"XREVRANGE", key, b"+", b"-", b"COUNT", b"%d" % num_entries)])
        return [(_unix_ms(entry_id), fields) for entry_id, fields in _entries(reply)]

    def read_record(self, digest: bytes) -> bytes | None:
        """Return the value of a page's record field; None if it has none."""
        (reply,) = self._store.run([(b"HGET", page_key(digest), RECORD_FIELD)])
        return reply if isinstance(reply, bytes) else None

    def read_layers(
        self, digest: bytes, layers: Sequence[int], *, layer_bytes: int
    ) -> Iterator[list[tuple[int, bytes | None]]]:
        """Yield (layer, value, None if it is missing), those of a command together.

        A value whose length is not that of layer_bytes is not read and comes as empty bytes.
        """
        step = max(1, MAX_READ_BYTES // (LAYER_HEADER_BYTES + layer_bytes))
        for start in range(0, len(layers), step):
            yield self._read_group(digest, layers[start : start + step], layer_bytes)

    def _read_group(
        self, digest: bytes, layers: Sequence[int], layer_bytes: int
    ) -> list[tuple[int, bytes | None]]:
        key = page_key(digest)
        names = [layer_field(layer) for layer in layers]
        lengths = self._store.run([(b"HSTRLEN", key, name) for name in names])
        right = LAYER_HEADER_BYTES + layer_bytes
        wanted = [name for name, length in zip(names, lengths, strict=True) if length == right]
        values: dict[bytes, object] = {
            name: b"" if length else None for name, length in zip(names, lengths, strict=True)
        }
        if wanted:
            (reply,) = self._store.run([(b"HMGET", key, *wanted)])
            if isinstance(reply, list) and len(reply) == len(wanted):
                values.update(zip(wanted, reply, strict=True))
        found = ((layer, values[name]) for layer, name in zip(layers, names, strict=True))
        return [(layer, value if isinstance(value, bytes) else None) for layer, value in found]


def _entries(reply: object) -> list[tuple[bytes, dict[bytes, bytes]]]:
    if reply is None:
        return []
    if not isinstance(reply, list):
        raise CacheFault(f"Redis: a log was answered by {type(reply).__name__}")
    return [_entry(each) for each in reply]


def _entry(reply: object) -> tuple[bytes, dict[bytes, bytes]]:
    match reply:
        case [bytes() as entry_id, list() as fields]:
            flat = _bytes_list(fields)
            if len(flat) % 2 == 0:
                return entry_id, dict(zip(flat[::2], flat[1::2], strict=True))
    raise CacheFault("Redis: an entry of a log is none")


def _unix_ms(entry_id: bytes) -> int:
    unix_ms = entry_id.partition(b"-")[0]
    if not (unix_ms.isdigit() and len(unix_ms) <= _MAX_DIGITS and int(unix_ms) < 1 << 63):
        raise CacheFault("Redis: an entry of a log is none")
    return int(unix_ms)


def _bytes_list(reply: object) -> list[bytes]:
    if reply is None:
        return []
    if not isinstance(reply, list) or not all(isinstance(each, bytes) for each in reply):
        raise CacheFault(f"Redis: a list of values was answered by {type(reply).__name__}")
    return reply
