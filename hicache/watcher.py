"""Watches Redis: whether it answers, whether it lost its pages; rebuilds, evicts and unlinks.

Three loops share the store's thread: a ping every second, rebuilds when wanted, and unlinks of
doomed pages; a fourth goes on with what is too much to evict in one piece. Redis being away is a
state here, never an error to anybody. Each server bears a mark that hicache-servers gave it:
without it, or with another one, it lost what it had.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections.abc import Callable

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.kv_servers import ServerInfo
from chunkmesh.redis_metrics import REDIS_FAULTS
from chunkmesh.store_thread import StoreThread
from hicache.cache import PrefixCache
from hicache.metrics import IndexReport
from hicache.rebuild import Rebuilder
from hicache.watch import ChangeFeed

PING_S = 1.0
NOT_ASKED = "not asked yet"
_UNLINK_PAGES = 500

_log = structlog.get_logger(__name__)


class RedisWatcher:
    """Owns what is known of the server."""

    def __init__(
        self,
        cache: PrefixCache,
        store: StoreThread,
        *,
        rebuilder: Rebuilder,
        feed: ChangeFeed,
        on_unlinked: Callable[[tuple[bytes, ...]], None],
        ping_s: float = PING_S,
    ) -> None:
        self.fault: str | None = NOT_ASKED
        """Why Redis cannot be used; None if it can."""
        self.server: ServerInfo | None = None
        """Last answer."""
        self._cache = cache
        self._store = store
        self._rebuilder = rebuilder
        self._feed = feed
        self._on_unlinked = on_unlinked
        self._ping_s = ping_s
        self._report = IndexReport()
        self._unlink_wanted = asyncio.Event()
        self._evict_wanted = asyncio.Event()

    @property
    def rebuilding(self) -> bool:
        """Whether the index is being compared with Redis."""
        return self._rebuilder.rebuilding

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ping_loop())
            tasks.create_task(self._rebuilder.run())
            tasks.create_task(self._unlink_loop())
            tasks.create_task(self._evict_loop())

    def rebuild_soon(self) -> None:
        """Say that the index may lack pages that Redis has."""
        self._rebuilder.asked.set()

    def unlink_soon(self) -> None:
        """Say that pages may be doomed, or are to be evicted."""
        self._unlink_wanted.set()
        if self._cache.is_over:
            self._evict_wanted.set()

    async def _ping_loop(self) -> None:
        while True:
            try:
                self._answered(await self._marked_server())
            except CacheFault as error:
                self._failed(error)
            self._cache.tick(time.monotonic())
            self._report.show(self._cache, is_redis_up=self.fault is None)
            self.unlink_soon()
            await self._pause()

    async def _pause(self) -> None:
        """Wait for the next ping; when a rebuild is asked for, Redis may just have lost all."""
        if self.fault is not None:
            await asyncio.sleep(self._ping_s)
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._ping_s):
                await self._rebuilder.asked.wait()

    def _answered(self, server: ServerInfo) -> None:
        if self.fault is not None:
            _log.info("redis answers", name=server.name, version=server.version)
            self._feed.redis_up()
            self.fault = None
        before = self.server
        if before is None:
            self._rebuilder.redis_lost()
        elif (restarted := before.run_id != server.run_id) or self._was_emptied(server, before):
            _log.warning("redis lost its pages", restarted=restarted)
            self._rebuilder.redis_lost()
        self.server = server
        self._rebuilder.tick(time.monotonic())

    def _was_emptied(self, now: ServerInfo, before: ServerInfo) -> bool:
        """Whether a server lost its mark, or had keys and has none."""
        if not any(now.num_keys) and not self._cache.is_empty:
            return True
        each = zip(now.marks, now.num_keys, before.marks, before.num_keys, strict=False)
        return any(
            (mark != mark_before and mark_before is not None) or (keys_before and not keys)
            for mark, keys, mark_before, keys_before in each
        )

    async def _marked_server(self) -> ServerInfo:
        """Ask the servers who they are, and mark those that bear no mark.

        Raises:
            CacheFault: one does not answer.
        """
        server = await self._store.server()
        if None in server.marks:
            text = secrets.token_hex(16).encode()
            try:
                await self._store.call(lambda store: store.mark(text))
            except CacheFault as error:  # full: it takes the mark later
                _log.debug("redis is not marked", error=str(error))
            server = await self._store.server()
        return server

    def _failed(self, error: CacheFault) -> None:
        REDIS_FAULTS.labels("ping").inc()
        if self.fault in {None, NOT_ASKED}:
            _log.warning("redis does not answer", error=str(error))
            self._feed.redis_down(str(error))
        self.fault = str(error)

    async def _evict_loop(self) -> None:
        """Do what is too much at once piece by piece, with others served between."""
        while True:
            await self._evict_wanted.wait()
            self._evict_wanted.clear()
            while self._cache.is_over:
                await asyncio.sleep(0)
                self._cache.go_on(time.monotonic())
                self._unlink_wanted.set()

    async def _unlink_loop(self) -> None:
        """Unlink what is due; a Redis that only refuses this may still be read."""
        is_refused = False
        while True:
            await self._unlink_wanted.wait()
            self._unlink_wanted.clear()
            while self.fault is None and (
                doomed := self._cache.doomed(_UNLINK_PAGES, now_s=time.monotonic())
            ):
                try:
                    await self._store.unlink(doomed)
                except CacheFault as error:
                    REDIS_FAULTS.labels("unlink").inc()
                    if not is_refused:
                        _log.warning("deleted pages stay in redis", error=str(error))
                    is_refused = True
                    break
                else:
                    is_refused = False
                    self._cache.unlinked(doomed)
                    self._on_unlinked(doomed)
