"""The page store for the event loop: one blocking client on one thread of its own."""

from __future__ import annotations

import asyncio
import concurrent.futures
from collections.abc import AsyncIterator, Callable, Sequence
from typing import TypeVar

from chunkmesh.kv_servers import ServerInfo
from chunkmesh.kv_store import KvStore
from chunkmesh.stored_page import StoredPage

_T = TypeVar("_T")


class StoreThread:
    """Owns a client; calls run in order, one at a time, and raise CacheFault as the client does."""

    def __init__(self, store: KvStore) -> None:
        self._store = store
        self._executor = concurrent.futures.ThreadPoolExecutor(1, thread_name_prefix="page-store")

    async def server(self) -> ServerInfo:
        """Ask the server who it is."""
        return await self._run(self._store.server)

    async def unlink(self, digests: Sequence[bytes]) -> int:
        """Delete pages; return how many there were."""
        return await self._run(lambda: self._store.unlink(digests))

    async def scan(self) -> AsyncIterator[tuple[StoredPage, ...]]:
        """Yield all pages in batches; other calls may run in between."""
        batches = self._store.scan()
        while (batch := await self._run(lambda: next(batches, None))) is not None:
            yield batch

    async def call(self, work: Callable[[KvStore], _T]) -> _T:
        """Let work use the client, which is its own as long as it runs."""
        return await self._run(lambda: work(self._store))

    def close(self) -> None:
        """Wait for the running call, at most the client's timeout, and disconnect."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._store.close()

    async def _run(self, call: Callable[[], _T]) -> _T:
        return await asyncio.get_running_loop().run_in_executor(self._executor, call)
