"""The lease of a mesh in Redis, and the counter that its leaders' terms come from. Blocking.

Three keys a mesh: the lease, the counter, and for a few seconds the name of a leader that left.
What is read back is checked, for others may write to this Redis.
"""

from __future__ import annotations

import dataclasses
import re

from chunkmesh.errors import CacheFault
from chunkmesh.kv_lease import KvLease
from chunkmesh.kv_store import KvStore
from scheduler.leadership import (
    MAX_TERM,
    TTL_S,
    Exchange,
    Holder,
    LeaseSeen,
    LookAtLease,
    ReleaseLease,
    RenewLease,
    SeizeLease,
    TakeTerm,
    TermTaken,
)

_FORM = re.compile(rb"([0-9a-f]{16}) ([0-9]{1,10}) ([!-~]{0,300}) ([!-~]{0,300})")
_STRANGER = Holder(name="", term=0, users="unknown")
"""Whoever wrote something else into the lease; it is waited for until its end."""


class MeshLease:
    """One scheduler's hand on the keys of its mesh."""

    def __init__(self, mesh: str, me: Holder) -> None:
        """Stand for a mesh by name; the term that me has does not matter."""
        tag = b"{%s}" % mesh.encode()
        self._me = me
        self._lease = KvLease(key=b"cm-leader:" + tag, value=_written(me), ttl_s=TTL_S)
        self._counter = b"cm-term:" + tag
        self._left = b"cm-left:" + tag

    def exchange(self, store: KvStore, exchange: Exchange, asked_s: float) -> LeaseSeen | TermTaken:
        """Do what is asked, and return what Redis says.

        Raises:
            CacheFault: it does not answer, or is full.
        """
        match exchange:
            case TakeTerm():
                return TermTaken(term=self._take_term(store, exchange.above))
            case SeizeLease():
                return self._seize(store, exchange.term, asked_s)
            case RenewLease():
                holder = _read(self._lease.renew(store))
                return LeaseSeen(asked_s=asked_s, holder=holder, left_s=TTL_S)
            case LookAtLease():
                return self._look(store, asked_s)
            case ReleaseLease():
                return self._release(store, asked_s)

    def _look(self, store: KvStore, asked_s: float) -> LeaseSeen:
        value, left_s = self._lease.look(store)
        (left,) = store.run([(b"EXISTS", self._left)])
        return LeaseSeen(
            asked_s=asked_s,
            holder=None if value is None else _read(value),
            left_s=left_s,
            was_released=left == 1,
        )

    def _take_term(self, store: KvStore, above: int) -> int:
        term = self._raise_counter(store, 1)
        if term <= above:  # the counter was lost
            term = self._raise_counter(store, above + 1 - term)
        return term

    def _raise_counter(self, store: KvStore, by: int) -> int:
        (term,) = store.run([(b"INCRBY", self._counter, b"%d" % by)])
        if not isinstance(term, int) or not 0 < term <= MAX_TERM:
            raise CacheFault(f"Redis: {self._counter.decode()} holds no term of a scheduler")
        return term

    def _seize(self, store: KvStore, term: int, asked_s: float) -> LeaseSeen:
        before = self._lease
        self._lease = dataclasses.replace(
            before, value=_written(dataclasses.replace(self._me, term=term))
        )
        value = self._lease.seize(store)
        if value == before.value != self._lease.value:  # this one's own, under an earlier term
            before.release(store)
            value = self._lease.seize(store)
        if value is None:
            raise CacheFault("Redis is full: nobody can get the lease")
        store.run([(b"DEL", self._left)])
        return LeaseSeen(asked_s=asked_s, holder=_read(value), left_s=TTL_S)

    def _release(self, store: KvStore, asked_s: float) -> LeaseSeen:
        value, _ = self._lease.look(store)
        if value == self._lease.value:
            store.run([(b"SET", self._left, value, b"PX", b"%d" % round(2000 * TTL_S))])
            self._lease.release(store)
        return LeaseSeen(asked_s=asked_s, holder=None, was_released=True)


def _written(holder: Holder) -> bytes:
    return f"{holder.name} {holder.term} {holder.users} {holder.workers}".encode()


def _read(value: bytes) -> Holder | None:
    """Return who wrote a value; None of an empty one, which says that there is none."""
    if not value:
        return None
    form = _FORM.fullmatch(value)
    if form is None or int(form[2]) > MAX_TERM:
        return _STRANGER
    name, users, workers = (form[part].decode() for part in (1, 3, 4))
    return Holder(name=name, term=int(form[2]), users=users, workers=workers)
