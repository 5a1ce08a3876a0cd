"""Watches Redis: whether it answers, whether it lost its pages; rebuilds and unlinks.

Three loops share the store's thread: a ping every second, rebuilds when wanted, and unlinks of
doomed pages. Redis being away is a state here, never an error to anybody.
"""

from __future__ import annotations

import asyncio
import time

import structlog
from prometheus_client import Counter

from chunkmesh.errors import CacheFault
from chunkmesh.kv_servers import ServerInfo
from hicache.cache import PrefixCache
from hicache.kept_infos import KeptInfos
from hicache.kept_state import KeptState
from hicache.rebuild import rebuild
from hicache.store_thread import StoreThread
from hicache.watch import ChangeFeed

PING_S = 1.0
RESCAN_S = 3600.0
"""Pages also expire or are evicted by Redis itself; a scan this often finds out."""
NOT_ASKED = "not asked yet"
_UNLINK_PAGES = 500

_FAULTS = Counter("chunkmesh_redis_faults", "Times that Redis did not answer hicache-server.")

_log = structlog.get_logger(__name__)


class RedisWatcher:
    """Owns what is known of the server."""

    def __init__(
        self,
        cache: PrefixCache,
        store: StoreThread,
        *,
        kept: KeptState,
        infos: KeptInfos,
        feed: ChangeFeed,
        ping_s: float = PING_S,
    ) -> None:
        self.fault: str | None = NOT_ASKED
        """Why Redis cannot be used; None if it can."""
        self.server: ServerInfo | None = None
        """Last answer."""
        self.rebuilding = False
        self._cache = cache
        self._store = store
        self._kept = kept
        self._infos = infos
        self._feed = feed
        self._ping_s = ping_s
        self._rescan_at_s = 0.0
        self._rebuild_wanted = asyncio.Event()
        self._unlink_wanted = asyncio.Event()

    async def run(self) -> None:
        """Watch until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._ping_loop())
            tasks.create_task(self._rebuild_loop())
            tasks.create_task(self._unlink_loop())

    def unlink_soon(self) -> None:
        """Say that pages may be doomed."""
        self._unlink_wanted.set()

    async def _ping_loop(self) -> None:
        while True:
            try:
                self._answered(await self._store.server())
            except CacheFault as error:
                self._failed(error)
            self._cache.tick(time.monotonic())
            self.unlink_soon()
            await asyncio.sleep(self._ping_s)

    def _answered(self, server: ServerInfo) -> None:
        if self.fault is not None:
            _log.info("redis answers", name=server.name, version=server.version)
            self._feed.redis_up()
            self.fault = None
        restarted = self.server is None or self.server.run_id != server.run_id
        emptied = not self._cache.is_empty and _was_emptied(server, self.server)
        if restarted or emptied:
            if self.server is not None:
                _log.warning("redis lost its pages", restarted=restarted)
            self._cache.forget()
            self._kept.redis_lost()
            self._rescan_at_s = 0.0
        self.server = server
        if time.monotonic() >= self._rescan_at_s:
            self._rescan_at_s = time.monotonic() + RESCAN_S
            self.rebuilding = True
            self._rebuild_wanted.set()

    def _failed(self, error: CacheFault) -> None:
        _FAULTS.inc()
        if self.fault in {None, NOT_ASKED}:
            _log.warning("redis does not answer", error=str(error))
            self._feed.redis_down(str(error))
        self.fault = str(error)

    async def _rebuild_loop(self) -> None:
        while True:
            await self._rebuild_wanted.wait()
            self._rebuild_wanted.clear()
            try:
                await self._kept.load()
                await rebuild(self._cache, self._store)
                await self._infos.load()
            except CacheFault as error:
                _log.warning("rebuild broke off", error=str(error))
                self._rescan_at_s = 0.0
            self.rebuilding = self._rebuild_wanted.is_set()

    async def _unlink_loop(self) -> None:
        while True:
            await self._unlink_wanted.wait()
            self._unlink_wanted.clear()
            while self.fault is None and (
                doomed := self._cache.doomed(_UNLINK_PAGES, now_s=time.monotonic())
            ):
                try:
                    await self._store.unlink(doomed)
                except CacheFault as error:
                    self._failed(error)
                else:
                    self._cache.unlinked(doomed)


def _was_emptied(now: ServerInfo, before: ServerInfo | None) -> bool:
    """Whether all servers have no key, or one that had some has none."""
    if not any(now.num_keys):
        return True
    return before is not None and any(
        not keys and keys_before
        for keys, keys_before in zip(now.num_keys, before.num_keys, strict=False)
    )
