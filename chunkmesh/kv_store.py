"""Pages in Redis or Valkey: one server, several that share the pages, or a Redis Cluster.

A KvStore is a blocking client with a connection to each server, for one thread at a time; I/O
threads own one each. Every fault is a CacheFault, and a fault of one server is one of all: the
pages of a prompt are spread over them, so that without one hardly any prefix is whole.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from chunkmesh.errors import CacheFault, ConfigError
from chunkmesh.kv_connection import KvConnection
from chunkmesh.kv_login import NO_LOGIN, KvLogin
from chunkmesh.kv_pages import KvPages, Reading, Writing
from chunkmesh.kv_servers import ServerInfo, Servers, describe_servers, find_servers
from chunkmesh.kv_wire import Command
from chunkmesh.page_record import EncodedPage, PageFormat
from chunkmesh.stored_page import PageRead, StoredPage, page_key

_DONE = object()


class KvStore:
    """A client of the page store."""

    def __init__(
        self,
        *urls: str,
        timeout_s: float = 1.0,
        page_ttl_s: int = 86_400,
        login: KvLogin = NO_LOGIN,
    ) -> None:
        """Take redis://, rediss:// or unix:// without connecting.

        Several URLs are independent servers, the same in the same order for every client, or some
        members of one cluster. timeout_s bounds connecting and every send or receive; pages expire
        after page_ttl_s. login is for all of them.

        Raises:
            ConfigError: a URL is none of these, or there is none.
        """
        if not urls:
            raise ConfigError("--redis-url: none is given")
        self._seeds = tuple(KvConnection(url, timeout_s=timeout_s, login=login) for url in urls)
        self._page_ttl_s = page_ttl_s
        self._servers: Servers | None = None
        """None until they are found, and after a fault."""

    def close(self) -> None:
        """Close the connections."""
        self._forget_servers()

    def server(self) -> ServerInfo:
        """Ask the servers who they are.

        Raises:
            CacheFault: one does not answer, or is older than MIN_VERSION.
        """
        with self._found() as servers:
            return describe_servers(servers)

    def mark(self, text: bytes) -> None:
        """Give a mark to each server that has none.

        Raises:
            CacheFault: a server does not answer, or is full.
        """
        with self._found() as servers:
            marks = servers.marks
        self.run([(b"SET", key, text, b"NX") for key in marks])

    def write_pages(self, pages: Sequence[EncodedPage]) -> tuple[bool, ...]:
        """Write pages and their expiry; say which are there completely.

        A page that a server refuses, for example because it is full, is False.

        Raises:
            CacheFault: a server does not answer; any of the pages may be there.
        """
        writing = Writing(pages=pages, page_ttl_s=self._page_ttl_s, stored=[False] * len(pages))
        keys = [page_key(page.digest) for page in pages]
        self._run(keys, lambda server, part: server.write(writing, part))
        return tuple(writing.stored)

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
            CacheFault: a server does not answer.
        """
        reading = Reading(
            digests=digests,
            form=form,
            first_layer=first_layer,
            into=into,
            reads=["missing"] * len(digests),
        )
        keys = [page_key(digest) for digest in digests]
        self._run(keys, lambda server, part: server.read(reading, part))
        return tuple(reading.reads)

    def unlink(self, digests: Sequence[bytes]) -> int:
        """Delete pages; return how many there were.

        Raises:
            CacheFault: a server does not answer.
        """
        keys = [page_key(digest) for digest in digests]
        deleted: list[bytes] = []
        self._run(
            keys, lambda server, part: server.unlink([keys[index] for index in part], deleted)
        )
        return len(deleted)

    def scan(self) -> Iterator[tuple[StoredPage, ...]]:
        """Yield all pages in batches, in no order; a page may come twice.

        Pages that exist from the first step to the last are all found, unless they move from one
        server of a cluster to another meanwhile.

        Raises:
            CacheFault: a server does not answer.
        """
        with self._found() as servers:
            for pages in servers.pages:
                yield from pages.scan()

    def run(self, commands: Sequence[Command]) -> tuple[object, ...]:
        """Run commands, each on the server that has its first key, and return their replies.

        The reply is None for a key of another type.

        Raises:
            CacheFault: a server does not answer, or refuses a command.
        """
        replies: list[object] = [None] * len(commands)
        with self._found() as servers:
            parts = servers.split([bytes(command[1]) for command in commands])
            with servers.exchange(parts):
                for at, part in parts.items():
                    servers.connections[at].send([commands[index] for index in part])
                for at, part in parts.items():
                    for index in part:
                        replies[index] = servers.connections[at].value()
        return tuple(replies)

    def _run(
        self, keys: Sequence[bytes], work: Callable[[KvPages, list[int]], Iterator[None]]
    ) -> None:
        """Do work on the servers that hold the keys, each with the indices of its own.

        The steps of all servers are done in turn, so that each has something to do all the time.
        """
        with self._found() as servers:
            parts = servers.split(keys)
            with servers.exchange(parts):
                pending = [work(servers.pages[at], part) for at, part in parts.items()]
                while pending:
                    pending = [steps for steps in pending if next(steps, _DONE) is not _DONE]

    @contextlib.contextmanager
    def _found(self) -> Iterator[Servers]:
        """Yield the servers; after a fault or a lost connection they are looked for anew."""
        try:
            if self._servers is not None and self._servers.is_stale():
                self._forget_servers()
            if self._servers is None:
                self._servers = find_servers(self._seeds)
            yield self._servers
        except CacheFault:
            self._forget_servers()
            raise

    def _forget_servers(self) -> None:
        """Close all connections; whoever answers at the next call may be another server."""
        known = self._servers.connections if self._servers is not None else ()
        for connection in {*self._seeds, *known}:
            connection.close()
        self._servers = None
