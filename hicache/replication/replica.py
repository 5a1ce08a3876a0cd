"""Tells the other replicas what this one does, and does what they tell.

A place in the stream is had from join() on; all before it is found by a scan. Whoever cannot say
any more what lies behind its place has to join and scan again.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.store_thread import StoreThread
from hicache.cache import PrefixCache
from hicache.replication import stream
from hicache.replication.event_codec import encode_event
from hicache.replication.events import Compared, Joined, Leased
from hicache.replication.evictor import Evictor
from hicache.replication.follower import Follower, Need
from hicache.replication.metrics import EVENT_GAPS, EVENTS_IGNORED
from hicache.replication.outbox import Outbox

POLL_S = 0.05
"""Between two looks at the stream; what one replica does another knows after two at most."""

_log = structlog.get_logger(__name__)


class Replica:
    """Owner of the place in the stream."""

    def __init__(
        self,
        cache: PrefixCache,
        store: StoreThread,
        *,
        name: str,
        outbox: Outbox,
        follower: Follower,
        meet: Mapping[Need, Callable[[], None]],
    ) -> None:
        """Take a connection of its own, the name of the cache, and who meets needs."""
        self.name = name
        self.evictor = Evictor(cache, store, name)
        self._cache = cache
        self._store = store
        self._outbox = outbox
        self._follower = follower
        self._meet = {**meet, Need.TELL_LEASES: self._tell_leases}
        self._place: bytes | None = None
        """Id of the last entry read; None: to be joined."""
        self._is_whole = False
        """Whether the index was compared with Redis since it was joined."""

    async def join(self) -> None:
        """Take a place in the stream, unless there is one; the others tell their leases.

        Raises:
            CacheFault: Redis does not answer.
        """
        if self._place is None:
            name, joined = self.name.encode(), encode_event(Joined())
            self._place = await self._store.call(lambda store: stream.join(store, name, joined))

    async def rebuilt(self) -> None:
        """Take note that the index is what Redis has; from now on this replica may evict."""
        if not self._is_whole:
            self._is_whole = True
            self._outbox.add(Joined())
            self._outbox.add(Compared())
            self._meet[Need.RESCAN_SOON]()
            await self.evictor.stand()

    def lost(self) -> None:
        """Take note that Redis lost its contents; nothing of before is told any more."""
        self._outbox.clear()
        self._leave_place()

    async def run(self, stand_s: float) -> None:
        """Tell, listen, and stand for election every stand_s, until cancelled."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._talk())
            tasks.create_task(self._stand(stand_s))

    async def close(self) -> None:
        """Tell what is left, and make room for another evictor."""
        if self._place is not None:
            with contextlib.suppress(CacheFault):
                await self._tell()
        await self.evictor.leave()

    async def _stand(self, stand_s: float) -> None:
        while True:
            if self._is_whole:
                await self.evictor.stand()
            await asyncio.sleep(stand_s)

    async def _talk(self) -> None:
        is_down = False
        while True:
            num_read = 0
            if self._place is not None:
                try:
                    num_read = await self._listen(self._place)
                    await self._tell()
                    is_down = False
                except CacheFault as error:
                    if not is_down:
                        _log.warning("replicas are not heard, or not told", error=str(error))
                    is_down = True
            if num_read < stream.READ_ENTRIES:
                await asyncio.sleep(POLL_S)

    async def _tell(self) -> None:
        """Append what waits; it goes on waiting if that fails.

        Raises:
            CacheFault: Redis does not answer, or is full.
        """
        name, pieces = self.name.encode(), self._outbox.take()
        if pieces:
            try:
                await self._store.call(lambda store: stream.append(store, name, pieces))
            except CacheFault:
                self._outbox.put_back(pieces)
                raise

    async def _listen(self, place: bytes) -> int:
        """Do what the others told behind a place; return the number of entries.

        Raises:
            CacheFault: Redis does not answer.
        """
        entries = await self._store.call(lambda store: stream.read(store, place))
        if entries is None:
            _log.warning("events were cut off before they were read")
            EVENT_GAPS.inc()
            self._leave_place()
            self._meet[Need.RESCAN]()
            return 0
        for entry in entries:
            if self._place != place:  # Redis was found to be empty meanwhile
                return 0
            self._follow(entry)
            self._place = place = entry.entry_id
            await asyncio.sleep(0)
        return len(entries)

    def _follow(self, entry: stream.Entry) -> None:
        if entry.replica == self.name.encode():
            return
        if not entry.replica:
            EVENTS_IGNORED.inc()
            return
        num_ignored = self._follower.num_ignored
        for need in self._follower.follow(entry.events, now_s=time.monotonic()):
            self._meet[need]()
        EVENTS_IGNORED.inc(self._follower.num_ignored - num_ignored)

    def _tell_leases(self) -> None:
        for lease_id, last, ttl_s in self._cache.elsewhere.untold_leases(time.monotonic()):
            self._outbox.add(Leased(lease_id=lease_id, last=last, ttl_s=ttl_s))

    def _leave_place(self) -> None:
        self._place = None
        self._is_whole = False
        self.evictor.resign()
