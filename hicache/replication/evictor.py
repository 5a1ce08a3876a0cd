"""Takes part in the election of the replica that evicts, by a key in Redis that ends by itself."""

from __future__ import annotations

import contextlib
import time

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.kv_lease import KvLease
from chunkmesh.store_thread import StoreThread
from hicache.cache import PrefixCache
from hicache.replication.election import TTL_S, Election
from hicache.replication.metrics import EVICTS

KEY = b"cm-evictor"

_log = structlog.get_logger(__name__)


class Evictor:
    """Says to the cache until when it evicts."""

    def __init__(self, cache: PrefixCache, store: StoreThread, name: str) -> None:
        self._cache = cache
        self._store = store
        self._election = Election(name.encode())
        self._lease = KvLease(key=KEY, value=name.encode(), ttl_s=TTL_S)
        self._evicts = False
        self._is_asking = False
        """Whether a try was made whose answer is not known, as when it was cancelled."""
        self.resign()

    @property
    def evicts(self) -> bool:
        """Whether this replica evicts."""
        return self._election.holds(time.monotonic())

    async def stand(self) -> None:
        """Try to get the key, or to keep it; without Redis this replica does not evict."""
        asked_s = time.monotonic()
        is_mine = self._election.holds(asked_s)
        self._is_asking = True
        try:
            holder = await self._store.call(self._lease.renew if is_mine else self._lease.seize)
        except CacheFault:
            self.resign()
        else:
            self._election.answered(holder, asked_s=asked_s)
            self._apply()
        self._is_asking = False

    def resign(self) -> None:
        """Evict no more; the key ends by itself."""
        self._election.lost()
        self._apply()

    async def leave(self) -> None:
        """Evict no more, and let another one follow at once."""
        if self.evicts or self._is_asking:
            self.resign()
            with contextlib.suppress(CacheFault):
                await self._store.call(self._lease.release)

    def _apply(self) -> None:
        self._cache.keep_limits(until_s=self._election.until_s)
        if self._evicts != self.evicts:
            self._evicts = self.evicts
            EVICTS.set(self._evicts)
            _log.info("evictor", here=self._evicts)
