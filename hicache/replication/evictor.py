"""Takes part in the election of the replica that evicts, by a key in Redis.

The key is set only where there is none, and ends by itself when its holder does not renew it.
"""

from __future__ import annotations

import contextlib
import time

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.kv_store import KvStore
from hicache.cache import PrefixCache
from hicache.replication.election import TTL_S, Election
from hicache.replication.metrics import EVICTS
from hicache.store_thread import StoreThread

KEY = b"cm-evictor"
_TTL_MS = b"%d" % round(TTL_S * 1000)

_log = structlog.get_logger(__name__)


class Evictor:
    """Says to the cache until when it evicts."""

    def __init__(self, cache: PrefixCache, store: StoreThread, name: str) -> None:
        self._cache = cache
        self._store = store
        self._election = Election(name.encode())
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
        name, is_mine = self._election.name, self._election.holds(asked_s)
        self._is_asking = True
        try:
            holder = await self._store.call(
                lambda store: _renewed(store) if is_mine else _seized(store, name)
            )
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
                await self._store.call(lambda store: _give_back(store, self._election.name))

    def _apply(self) -> None:
        self._cache.keep_limits(until_s=self._election.until_s)
        if self._evicts != self.evicts:
            self._evicts = self.evicts
            EVICTS.set(self._evicts)
            _log.info("evictor", here=self._evicts)


def _seized(store: KvStore, name: bytes) -> bytes | None:
    """Return who holds the key after a try to get it; None if nobody does and none may."""
    try:
        store.run([(b"SET", KEY, name, b"NX", b"PX", _TTL_MS)])
    except CacheFault:
        (holder,) = store.run([(b"GET", KEY)])
        return holder if isinstance(holder, bytes) else None
    (holder,) = store.run([(b"GET", KEY)])
    return holder if isinstance(holder, bytes) else b""


def _renewed(store: KvStore) -> bytes:
    """Let the key live on; return who holds it."""
    _, holder = store.run([(b"PEXPIRE", KEY, _TTL_MS), (b"GET", KEY)])
    return holder if isinstance(holder, bytes) else b""


def _give_back(store: KvStore, name: bytes) -> None:
    """Delete the key if it is ours."""
    (holder,) = store.run([(b"GET", KEY)])
    if holder == name:
        store.run([(b"DEL", KEY)])
