"""Does in this replica's cache what the others tell. Pure; time enters as now_s."""

from __future__ import annotations

import enum
from collections.abc import Callable

from chunkmesh.errors import InvalidRequest
from hicache.cache import PrefixCache
from hicache.changes import ChangeKind, Summary
from hicache.replication.event_codec import decode_events
from hicache.replication.events import (
    Cleared,
    Committed,
    Compared,
    Described,
    Event,
    Gone,
    Joined,
    KeptChanged,
    Leased,
    Lost,
    Released,
    Told,
    Unlinked,
)


class Need(enum.Enum):
    """What the shell has to do because of an event."""

    RESCAN = enum.auto()
    """Compare the index with Redis."""
    RESCAN_SOON = enum.auto()
    """Compare the index with Redis when those who store know of a replica that has come."""
    LOAD_KEPT = enum.auto()
    """Read pins and quotas."""
    LOAD_INFOS = enum.auto()
    """Read what namespaces stand for."""
    TELL_LEASES = enum.auto()
    """Publish our live leases."""


_NEEDS: dict[type[Event], Need] = {
    Cleared: Need.RESCAN,
    Lost: Need.RESCAN,
    KeptChanged: Need.LOAD_KEPT,
    Described: Need.LOAD_INFOS,
    Joined: Need.TELL_LEASES,
    Compared: Need.RESCAN_SOON,
}


class Follower:
    """Changes the cache, and tells watchers of it."""

    def __init__(
        self,
        cache: PrefixCache,
        *,
        tell: Callable[[Summary], None],
        tell_cleared: Callable[[int, int], None],
    ) -> None:
        """Take who tells watchers of a change, and of pages and bytes that were cleared."""
        self.num_ignored = 0
        """Events that could not be read or contradict what is known."""
        self._cache = cache
        self._tell = tell
        self._tell_cleared = tell_cleared

    def follow(self, data: bytes, *, now_s: float) -> set[Need]:
        """Do the events of another replica; return what is to be done besides."""
        needs = set()
        for event in decode_events(data):
            if event is None:
                self.num_ignored += 1
                continue
            try:
                self._do(event, now_s)
            except InvalidRequest:
                self.num_ignored += 1
            need = _NEEDS.get(type(event))
            if need is not None:
                needs.add(need)
        return needs

    def _do(self, event: Event, now_s: float) -> None:
        elsewhere = self._cache.elsewhere
        match event:
            case Committed(namespace=namespace, stored=stored):
                self._tell(_summary(event))
                elsewhere.committed(namespace, stored.pages, stored.coverage, now_s=now_s)
            case Gone(digests=digests):
                elsewhere.drop(digests, now_s=now_s)
                self._tell(_summary(event))
            case Unlinked(digests=digests):
                elsewhere.unlinked(digests, now_s=now_s)
            case Told(summary=summary, last=last):
                if last is not None:
                    elsewhere.matched(last, now_s=now_s)
                self._tell(summary)
            case Leased(lease_id=lease_id, last=last, ttl_s=ttl_s):
                path = elsewhere.path(last)
                elsewhere.hold(lease_id, path, ttl_s=ttl_s, now_s=now_s)
            case Released(lease_id=lease_id):
                elsewhere.released(lease_id, now_s=now_s)
            case Cleared(num_pages=num_pages, num_bytes=num_bytes):
                self._cache.forget()
                self._tell_cleared(num_pages, num_bytes)
            case KeptChanged() | Described() | Joined() | Compared() | Lost():
                pass  # for the shell


def _summary(event: Committed | Gone) -> Summary:
    if isinstance(event, Committed):
        kind, pages = ChangeKind.COMMITTED, tuple(page[0] for page in event.stored.pages)
        num_bytes = len(pages) * event.stored.coverage.num_bytes
    else:
        kind, pages, num_bytes = event.kind, event.digests, event.num_bytes
    return Summary(
        kind=kind,
        namespace=event.namespace,
        first=pages[0],
        num_pages=len(pages),
        num_queried_pages=0,
        num_bytes=num_bytes,
    )
