"""Pages in Redis or Valkey: the one module that imports redis.

A KvStore is a blocking client with one connection, for one thread at a time; I/O threads own one
each. A command that fails or times out takes the connection with it, so its reply can never be
read as the answer to the next one. Every fault is a CacheFault; the next call connects anew.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar, cast

import numpy as np
import numpy.typing as npt
from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

from chunkmesh.errors import CacheFault, ConfigError
from chunkmesh.page_record import RECORD_FIELD, EncodedPage, PageFormat, layer_field
from chunkmesh.stored_page import (
    KEY_PREFIX,
    PageRead,
    StoredPage,
    decode_page,
    describe_page,
    key_digest,
    page_key,
)

MIN_VERSION = (6, 2)
MAX_COMMAND_BYTES = 4 << 20
MAX_BATCH_BYTES = 16 << 20
_READ_BYTES = 1 << 20
_SCAN_COUNT = 500
_UNCOPIED_BYTES = 16 << 10

Command = Sequence[bytes | memoryview]
_T = TypeVar("_T")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """What the server says of itself."""

    name: str
    """redis or valkey."""
    version: str
    """Version of Redis that it is or stands for, such as 7.2.4."""
    run_id: str
    """New at every start of the server."""
    num_keys: int


class _Connection(Protocol):
    """The part of redis-py's connections in use; they carry no types."""

    def send_packed_command(self, command: Iterator[bytes | memoryview]) -> None: ...

    def read_response(self) -> object: ...

    def can_read(self, timeout: float) -> bool: ...

    def disconnect(self) -> None: ...


class KvStore:
    """One connection to the page store."""

    def __init__(self, url: str, *, timeout_s: float = 1.0, page_ttl_s: int = 86_400) -> None:
        """Take redis://, rediss:// or unix:// without connecting.

        timeout_s bounds connecting and every send or receive; pages expire after page_ttl_s.

        Raises:
            ConfigError: the URL is none of these.
        """
        try:
            pool = ConnectionPool.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                socket_read_size=_READ_BYTES,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
            )
            self._connection = cast("_Connection", pool.make_connection())
        except (ValueError, TypeError) as error:
            raise ConfigError(f"--redis-url {url}: {error}") from error
        self._page_ttl_s = page_ttl_s
        self._version_checked = False
        self._connected = False
        """Whether an exchange has ended well on this connection."""

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    def server(self) -> ServerInfo:
        """Ask the server who it is.

        Raises:
            CacheFault: it does not answer, or is older than MIN_VERSION.
        """
        with self._exchange():
            return self._ask_server()

    def write_pages(self, pages: Sequence[EncodedPage]) -> tuple[bool, ...]:
        """Write pages and their expiry; say which are there completely.

        A page that the server refuses, for example because it is full, is False.

        Raises:
            CacheFault: the server does not answer; any of the pages may be there.
        """
        stored: list[bool] = []
        with self._exchange():
            self._check_version()
            for batch in _batches(pages, [page.num_bytes for page in pages]):
                commands = [self._write_commands(page) for page in batch]
                self._send([command for group in commands for command in group])
                stored.extend(self._accepted(len(group)) for group in commands)
        return tuple(stored)

    def read_pages(
        self,
        digests: Sequence[bytes],
        form: PageFormat,
        first_layer: int,
        into: npt.NDArray[np.uint8],
    ) -> tuple[PageRead, ...]:
        """Read consecutive layers of pages into a staging array [pages, layers, layer_bytes].

        A page is ok when its record fits form and every layer is sound; the contents of other
        pages in the array are undefined.

        Raises:
            CacheFault: the server does not answer.
        """
        fields = [layer_field(first_layer + index) for index in range(into.shape[1])]
        step = max(1, MAX_COMMAND_BYTES // form.layer_bytes)
        groups = [fields[start : start + step] for start in range(0, len(fields), step)]
        page_bytes = len(fields) * form.layer_bytes
        reads: list[PageRead] = []
        with self._exchange():
            self._check_version()
            for batch in _batches(range(len(digests)), [page_bytes] * len(digests)):
                keys = [page_key(digests[index]) for index in batch]
                self._send(
                    [(b"HMGET", key, RECORD_FIELD, *group) for key in keys for group in groups]
                )
                for index in batch:
                    values = self._page_values(len(groups))
                    reads.append(
                        decode_page(digests[index], form, first_layer, values, into[index])
                    )
        return tuple(reads)

    def unlink(self, digests: Sequence[bytes]) -> int:
        """Delete pages; return how many there were.

        Raises:
            CacheFault: the server does not answer.
        """
        num_deleted = 0
        with self._exchange():
            for start in range(0, len(digests), _SCAN_COUNT):
                keys = [page_key(digest) for digest in digests[start : start + _SCAN_COUNT]]
                num_deleted += self._call((b"UNLINK", *keys), int)
        return num_deleted

    def scan(self) -> Iterator[tuple[StoredPage, ...]]:
        """Yield all pages in batches, in no order; a page may come twice.

        Pages that exist from the first step to the last are all found.

        Raises:
            CacheFault: the server does not answer.
        """
        cursor = b"0"
        count = b"%d" % _SCAN_COUNT
        while True:
            with self._exchange():
                self._check_version()
                command = (b"SCAN", cursor, b"MATCH", KEY_PREFIX + b"*", b"COUNT", count)
                match self._call(command, list):
                    case [bytes() as cursor, list() as keys]:
                        pages = self._describe([key for key in keys if key_digest(key)])
                    case reply:
                        raise CacheFault(f"Redis: SCAN was answered by {len(reply)} values")
            yield pages
            if cursor == b"0":
                return

    def run(self, commands: Sequence[Command]) -> tuple[object, ...]:
        """Run commands in one go and return their replies; None for a key of another type.

        Raises:
            CacheFault: the server does not answer, or refuses a command.
        """
        with self._exchange():
            self._check_version()
            self._send(commands)
            return tuple(self._value() for _ in commands)

    def _describe(self, keys: Sequence[bytes]) -> tuple[StoredPage, ...]:
        commands: list[Command] = []
        for key in keys:
            commands += ((b"HGET", key, RECORD_FIELD), (b"HKEYS", key))
        self._send(commands)
        pages = []
        for key in keys:
            record, fields = self._value(), self._value()
            pages.append(describe_page(key, record, fields))
        return tuple(pages)

    def _write_commands(self, page: EncodedPage) -> list[Command]:
        key = page_key(page.digest)
        commands: list[Command] = [
            (b"HSET", key, *fields) for fields in page.commands(MAX_COMMAND_BYTES)
        ]
        commands.append((b"EXPIRE", key, b"%d" % self._page_ttl_s))
        return commands

    def _accepted(self, num_replies: int) -> bool:
        replies = [self._reply() for _ in range(num_replies)]
        return not any(isinstance(reply, ResponseError) for reply in replies) and replies[-1] == 1

    def _page_values(self, num_replies: int) -> list[bytes | None]:
        """Read one page's HMGET replies; the record of the first stands for all."""
        values: list[bytes | None] = []
        for _ in range(num_replies):
            reply = self._value()
            found = reply if isinstance(reply, list) else [None]
            values += found if not values else found[1:]
        return values

    def _value(self) -> object:
        """Read a reply; a key of another type is as good as none."""
        reply = self._reply()
        if isinstance(reply, ResponseError):
            if str(reply).startswith("WRONGTYPE"):
                return None
            raise reply
        return reply

    def _check_version(self) -> None:
        if not self._version_checked:
            self._ask_server()

    def _ask_server(self) -> ServerInfo:
        text = self._call((b"INFO", b"server"), bytes).decode(errors="replace")
        fields = dict(line.split(":", 1) for line in text.splitlines() if ":" in line)
        version = fields.get("redis_version", "0")
        parts = [int(part) for part in version.split(".")[:2] if part.isdigit()]
        if tuple(parts) < MIN_VERSION:
            raise CacheFault(f"Redis {version} is older than {MIN_VERSION[0]}.{MIN_VERSION[1]}")
        self._version_checked = True
        return ServerInfo(
            name=fields.get("server_name", "redis"),
            version=version,
            run_id=fields.get("run_id", ""),
            num_keys=self._call((b"DBSIZE",), int),
        )

    @contextlib.contextmanager
    def _exchange(self) -> Iterator[None]:
        """Drop the connection unless every reply has been read."""
        if self._connected and self._is_stale():
            self._connection.disconnect()
        self._connected = False
        try:
            yield
        except (RedisError, OSError) as error:
            self._connection.disconnect()
            raise CacheFault(f"Redis: {error}") from error
        except BaseException:
            self._connection.disconnect()
            raise
        self._connected = True

    def _is_stale(self) -> bool:
        """Whether the server closed the idle connection, or something on it was never read."""
        try:
            return self._connection.can_read(0)
        except (RedisError, OSError):
            return True

    def _call(self, command: Command, kind: type[_T]) -> _T:
        self._send([command])
        reply = self._reply()
        if isinstance(reply, ResponseError):
            raise reply
        if not isinstance(reply, kind):
            raise CacheFault(f"Redis: {command[0]!r} was answered by {type(reply).__name__}")
        return reply

    def _send(self, commands: Sequence[Command]) -> None:
        self._connection.send_packed_command(_pack(commands))

    def _reply(self) -> object:
        try:
            return self._connection.read_response()
        except ResponseError as error:
            return error


def _pack(commands: Sequence[Command]) -> Iterator[bytes | memoryview]:
    """Yield the wire form; large values as they are, so that they are not copied."""
    small: list[bytes | memoryview] = []
    for command in commands:
        small.append(b"*%d\r\n" % len(command))
        for part in command:
            small.append(b"$%d\r\n" % len(part))
            if len(part) >= _UNCOPIED_BYTES:
                yield b"".join(small)
                yield part
                small = []
            else:
                small.append(part)
            small.append(b"\r\n")
    yield b"".join(small)


def _batches(items: Sequence[_T], sizes: Sequence[int]) -> Iterator[list[_T]]:
    """Cut items into lists of at most MAX_BATCH_BYTES, or of one item."""
    batch: list[_T] = []
    num_bytes = 0
    for item, size in zip(items, sizes, strict=True):
        if batch and num_bytes + size > MAX_BATCH_BYTES:
            yield batch
            batch, num_bytes = [], 0
        batch.append(item)
        num_bytes += size
    if batch:
        yield batch
