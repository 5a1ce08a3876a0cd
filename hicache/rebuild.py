"""Brings the index in line with Redis by a scan in the background, while requests are served."""

from __future__ import annotations

import asyncio
import time

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.store_thread import StoreThread
from hicache.cache import PrefixCache
from hicache.kept_infos import KeptInfos
from hicache.kept_state import KeptState
from hicache.replication.replica import Replica
from hicache.slices import parts

RESCAN_S = 3600.0
"""Pages also expire or are evicted by Redis itself; a scan this often finds out."""
SETTLE_S = 5.0
"""After a replica has come. By then schedulers have found it, so that whatever was stored and told
to nobody is in Redis; their channels try again every 2 s."""

_log = structlog.get_logger(__name__)


class Rebuilder:
    """Owner of when to rebuild; reads with the pages all that Redis keeps beside them."""

    def __init__(
        self,
        cache: PrefixCache,
        store: StoreThread,
        *,
        kept: KeptState,
        infos: KeptInfos,
        replica: Replica,
        asked: asyncio.Event,
    ) -> None:
        """Take an event that is set by whoever asks for a rebuild."""
        self.asked = asked
        self._cache = cache
        self._store = store
        self._kept = kept
        self._infos = infos
        self._replica = replica
        self._wanted = asyncio.Event()
        self._is_running = False
        self._rescan_at_s = 0.0

    @property
    def rebuilding(self) -> bool:
        """Whether the index is being compared with Redis, or is about to be."""
        return self._is_running or self._wanted.is_set() or self.asked.is_set()

    def redis_lost(self) -> None:
        """Take note that Redis lost its pages, and all else."""
        self._cache.forget()
        self._kept.redis_lost()
        self._replica.lost()
        self._rescan_at_s = 0.0

    def rescan_soon(self) -> None:
        """Compare once more in a moment, and again at the usual times after that."""
        self._rescan_at_s = min(self._rescan_at_s, time.monotonic() + SETTLE_S)

    def tick(self, now_s: float) -> None:
        """Begin a rebuild if it was asked for or is time for one; called when Redis answered."""
        if now_s >= self._rescan_at_s or self.asked.is_set():
            self.asked.clear()
            self._rescan_at_s = now_s + RESCAN_S
            self._wanted.set()

    async def run(self) -> None:
        """Rebuild when wanted, until cancelled; what breaks off is done again at the next tick."""
        while True:
            await self._wanted.wait()
            self._is_running = True
            self._wanted.clear()
            try:
                await self._kept.load()
                await self._replica.join()
                await rebuild(self._cache, self._store)
                await self._infos.load()
                if not self._wanted.is_set():
                    await self._replica.rebuilt()
            except CacheFault as error:
                _log.warning("rebuild broke off", error=str(error))
                self._rescan_at_s = 0.0
            self._is_running = False


async def rebuild(cache: PrefixCache, store: StoreThread) -> None:
    """Record every page found, then forget those that were known before and were not found.

    A page without the pages above it is of no use to a request, but is recorded and so evicted.
    Ends early when the cache is told to forget everything meanwhile.

    Raises:
        CacheFault: Redis stopped answering; what was recorded so far stays.
    """
    generation = cache.generation
    missing = cache.known()
    num_found = num_refused = 0
    async for batch in store.scan():
        if cache.generation != generation:
            return
        num_refused += cache.adopt(batch, now_s=time.monotonic())
        num_found += len(batch)
        missing.difference_update(page.digest for page in batch)
    if cache.generation != generation:
        return
    num_dropped = 0
    for part in parts(list(missing)):
        if cache.generation != generation:
            return
        num_dropped += cache.invalidate(part)
        await asyncio.sleep(0)
    _log.info(
        "index rebuilt",
        num_found=num_found,
        num_refused=num_refused,
        num_dropped=num_dropped,
        num_pages=cache.num_pages,
        num_bytes=cache.num_bytes,
    )
