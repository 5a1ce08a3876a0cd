"""A key in Redis that one process holds and that ends by itself, for elections. Blocking.

The key is set only where there is none, and whoever holds it lets it live on. Another one may have
it as soon as it has ended, so a holder that was asleep only finds out when it asks.
"""

from __future__ import annotations

import dataclasses

from chunkmesh.errors import CacheFault
from chunkmesh.kv_store import KvStore


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KvLease:
    """One such key, as one of those who stand for it sees it. All methods raise CacheFault."""

    key: bytes
    value: bytes
    """Who this is; of nobody else, nor of an earlier start."""
    ttl_s: float
    """How long the key lives without renewal."""

    def look(self, store: KvStore) -> tuple[bytes | None, float]:
        """Return who holds the key, and for how many seconds more; None and 0 if nobody does."""
        holder, left_ms = store.run([(b"GET", self.key), (b"PTTL", self.key)])
        if not isinstance(holder, bytes):
            return None, 0.0
        return holder, max(0, left_ms) / 1000 if isinstance(left_ms, int) else 0.0

    def seize(self, store: KvStore) -> bytes | None:
        """Try to get the key; return who holds it, None if nobody does and none may.

        Redis that is full refuses the key to everybody.
        """
        refused = False
        try:
            store.run([(b"SET", self.key, self.value, b"NX", b"PX", self._ttl_ms)])
        except CacheFault:
            refused = True
        (holder,) = store.run([(b"GET", self.key)])
        return holder if isinstance(holder, bytes) else None if refused else b""

    def renew(self, store: KvStore) -> bytes:
        """Let the key live on, and return who holds it; b"" if nobody does."""
        _, holder = store.run([(b"PEXPIRE", self.key, self._ttl_ms), (b"GET", self.key)])
        return holder if isinstance(holder, bytes) else b""

    def release(self, store: KvStore) -> None:
        """Make room for another one, if this one holds the key."""
        if self.look(store)[0] == self.value:
            store.run([(b"DEL", self.key)])

    @property
    def _ttl_ms(self) -> bytes:
        return b"%d" % round(self.ttl_s * 1000)
