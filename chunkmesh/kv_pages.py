"""Pages on one Redis or Valkey server of several.

What concerns many servers is cut into steps, so that all of them work at once: a step reads what
the server answered to the step before, and sends it more to do.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from chunkmesh.errors import CacheFault
from chunkmesh.kv_connection import KvConnection
from chunkmesh.kv_wire import Command, Refused
from chunkmesh.page_record import RECORD_FIELD, EncodedPage, PageFormat, layer_field
from chunkmesh.page_room import PageRoom
from chunkmesh.stored_page import (
    KEY_PREFIX,
    PageRead,
    StoredPage,
    describe_page,
    key_digest,
    page_key,
)

MAX_COMMAND_BYTES = 4 << 20
MAX_BATCH_BYTES = 16 << 20
_AHEAD_BYTES = 1 << 20
_BATCH_KEYS = 500

_Piece = tuple[int, range]
"""Index of a page, and some of its layers."""
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Writing:
    """Pages to write, and which are there completely."""

    pages: Sequence[EncodedPage]
    page_ttl_s: int
    stored: list[bool]
    """One for each page, filled in."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """Pages to read, and how that went."""

    digests: Sequence[bytes]
    form: PageFormat
    first_layer: int
    into: npt.NDArray[np.uint8]
    """[pages, layers, layer_bytes], filled in."""
    reads: list[PageRead]
    """One for each page, filled in."""

    def room(self, index: int) -> PageRoom:
        """Return the room of a page."""
        return PageRoom(self.digests[index], self.form, self.first_layer, self.into[index])

    def pieces(self) -> Iterator[range]:
        """Cut a page into layers, from 0, that are read with one command."""
        num_layers = self.into.shape[1]
        step = max(1, _AHEAD_BYTES // self.form.layer_bytes)
        for start in range(0, num_layers, step):
            yield range(start, min(start + step, num_layers))


class KvPages:
    """Page commands over one connection, to be called inside its exchanges."""

    def __init__(self, connection: KvConnection) -> None:
        """Use a connection that somebody else closes."""
        self._connection = connection

    def write(self, writing: Writing, indices: Sequence[int]) -> Iterator[None]:
        """Write some of the pages and their expiry, in steps."""
        sizes = [writing.pages[index].num_bytes for index in indices]
        for batch in _batches(indices, sizes, MAX_BATCH_BYTES):
            groups = [_write_commands(writing.pages[index], writing.page_ttl_s) for index in batch]
            self._connection.send([command for group in groups for command in group])
            yield
            for index, group in zip(batch, groups, strict=True):
                writing.stored[index] = self._accepted(len(group))

    def read(self, reading: Reading, indices: Sequence[int]) -> Iterator[None]:
        """Read some of the pages, in steps, a batch of values ahead of those that are waited for.

        More would not come sooner, and would have the server keep replies in memory.
        """
        rooms = {index: reading.room(index) for index in indices}
        pieces = [(index, layers) for index in indices for layers in reading.pieces()]
        sizes = [len(layers) * reading.form.layer_bytes for _, layers in pieces]
        batches = list(_batches(pieces, sizes, _AHEAD_BYTES))
        self._ask(reading, batches[0])
        for batch, following in itertools.zip_longest(batches, batches[1:], fillvalue=()):
            self._ask(reading, following)
            yield
            for index, layers in batch:
                room = rooms[index]
                lengths = self._connection.read_values(room.parts(layers))
                reading.reads[index] = room.check(layers, lengths)

    def unlink(self, keys: Sequence[bytes], deleted: list[bytes]) -> Iterator[None]:
        """Delete pages, in steps; add the keys of those that were there to deleted."""
        for start in range(0, len(keys), _BATCH_KEYS):
            batch = keys[start : start + _BATCH_KEYS]
            self._connection.send([(b"UNLINK", key) for key in batch])
            yield
            deleted.extend([key for key in batch if self._connection.value() == 1])

    def scan(self) -> Iterator[tuple[StoredPage, ...]]:
        """Yield all pages in batches, in no order; a page may come twice. An exchange each.

        Raises:
            CacheFault: the server does not answer.
        """
        cursor = b"0"
        count = b"%d" % _BATCH_KEYS
        while True:
            with self._connection.exchange():
                command = (b"SCAN", cursor, b"MATCH", KEY_PREFIX + b"*", b"COUNT", count)
                match self._connection.call(command, list):
                    case [bytes() as cursor, list() as keys]:
                        pages = self._describe([key for key in keys if key_digest(key)])
                    case reply:
                        raise CacheFault(f"Redis: SCAN was answered by {len(reply)} values")
            yield pages
            if cursor == b"0":
                return

    def _describe(self, keys: Sequence[bytes]) -> tuple[StoredPage, ...]:
        commands: list[Command] = []
        for key in keys:
            commands += ((b"HGET", key, RECORD_FIELD), (b"HKEYS", key))
        self._connection.send(commands)
        pages = []
        for key in keys:
            record, fields = self._connection.value(), self._connection.value()
            pages.append(describe_page(key, record, fields))
        return tuple(pages)

    def _accepted(self, num_replies: int) -> bool:
        replies = [self._connection.reply() for _ in range(num_replies)]
        return not any(isinstance(reply, Refused) for reply in replies) and replies[-1] == 1

    def _ask(self, reading: Reading, pieces: Sequence[_Piece]) -> None:
        """Send for some layers of some pages, each with the page's record."""
        self._connection.send(
            [
                (
                    *(b"HMGET", page_key(reading.digests[index]), RECORD_FIELD),
                    *(layer_field(reading.first_layer + layer) for layer in layers),
                )
                for index, layers in pieces
            ]
        )


def _write_commands(page: EncodedPage, page_ttl_s: int) -> list[Command]:
    key = page_key(page.digest)
    commands: list[Command] = [
        (b"HSET", key, *fields) for fields in page.commands(MAX_COMMAND_BYTES)
    ]
    commands.append((b"EXPIRE", key, b"%d" % page_ttl_s))
    return commands


def _batches(items: Sequence[_T], sizes: Sequence[int], max_bytes: int) -> Iterator[Sequence[_T]]:
    """Cut items into lists of at most max_bytes, or of one item."""
    batch: list[_T] = []
    num_bytes = 0
    for item, size in zip(items, sizes, strict=True):
        if batch and num_bytes + size > max_bytes:
            yield batch
            batch, num_bytes = [], 0
        batch.append(item)
        num_bytes += size
    if batch:
        yield batch
