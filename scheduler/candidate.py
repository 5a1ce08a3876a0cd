"""Stands for election on behalf of one scheduler: asks Redis what its leadership wants to know."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable

import structlog

from chunkmesh.errors import CacheFault
from chunkmesh.redis_metrics import REDIS_FAULTS
from chunkmesh.store_thread import StoreThread
from scheduler.leadership import (
    Event,
    Exchange,
    Lead,
    Leadership,
    Leave,
    LetWorkersGo,
    LoneLeadership,
    StepDown,
    StoreFailed,
    TermHeard,
    Tick,
)
from scheduler.mesh_lease import MeshLease
from scheduler.metrics import show_leads

_log = structlog.get_logger(__name__)
_TICK_S = 0.05


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Deeds:
    """What a scheduler does when its role changes; none of them waits."""

    lead: Callable[[int], None]
    """Command workers from now on, under this term; may come again with a higher one."""
    step_down: Callable[[str, str], None]
    """End all requests and give up all workers, for this reason; users are told to ask the
    scheduler at this address, unless it is empty."""
    let_go: Callable[[str], None]
    """Give up all workers, for this reason."""
    has_route: Callable[[], bool]
    """Say whether a route stands or forms."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Election:
    """What it takes to be elected."""

    store: StoreThread
    """Owned by the candidate."""
    lease: Callable[[int, int], MeshLease]
    """Makes the lease of a scheduler with these ports for users and workers."""


class Candidate:
    """Owner of the one exchange with Redis that is under way."""

    def __init__(
        self,
        leadership: Leadership | LoneLeadership,
        deeds: Deeds,
        election: Election | None = None,
    ) -> None:
        """Stand by; a LoneLeadership leads at once, without an election."""
        self.leadership = leadership
        self._deeds = deeds
        self._election = election
        self._lease: MeshLease | None = None
        self._next: Exchange | None = None
        self._has_fault = False
        if election is None:
            self.look_at_clock()

    @contextlib.asynccontextmanager
    async def standing(self, *, users: int, workers: int) -> AsyncIterator[None]:
        """Stand for election while inside, with these ports; afterwards lead no more.

        Raises:
            Exception: the election failed by a bug; ends what is inside.
        """
        if self._election is None:
            yield
            self._handle(Leave())
            return
        self._lease = self._election.lease(users, workers)
        try:
            async with asyncio.TaskGroup() as tasks:
                run = tasks.create_task(self._run())
                try:
                    yield
                finally:
                    run.cancel()
        finally:
            self._handle(Leave())
            await self._exchange()
            await asyncio.to_thread(self._election.store.close)

    def look_at_clock(self) -> None:
        """Let time pass; a scheduler that is alone leads from the first time on."""
        self._handle(Tick(has_route=self._deeds.has_route()))

    def hear_term(self, term: int) -> None:
        """Take note that a worker has followed a leader of this term."""
        self._handle(TermHeard(term=term))

    async def _run(self) -> None:
        """Stand until cancelled."""
        while True:
            self.look_at_clock()
            await self._exchange()
            await asyncio.sleep(_TICK_S)

    async def _exchange(self) -> None:
        """Ask Redis what there is to be asked, until there is nothing more."""
        while self._next is not None:
            exchange, self._next = self._next, None
            event = await self._asked(exchange)
            self._tell_fault(event)
            self._handle(event)

    async def _asked(self, exchange: Exchange) -> Event:
        """Ask Redis one thing."""
        assert self._election is not None, "who is alone asks nobody"
        assert self._lease is not None
        lease, asked_s = self._lease, time.monotonic()
        try:
            return await self._election.store.call(
                lambda store: lease.exchange(store, exchange, asked_s)
            )
        except CacheFault as fault:
            REDIS_FAULTS.labels("lease").inc()
            return StoreFailed(reason=str(fault))

    def _handle(self, event: Event) -> None:
        """Let the leadership decide, and do what it says; Redis is asked later."""
        for action in self.leadership.handle(event, time.monotonic()):
            match action:
                case Lead(term=term):
                    _log.info("this scheduler leads", term=term)
                    self._deeds.lead(term)
                case StepDown(reason=reason):
                    _log.warning("this scheduler stands by", reason=reason)
                    active = self.leadership.active()
                    self._deeds.step_down(reason, active.users if active else "")
                case LetWorkersGo(reason=reason):
                    self._deeds.let_go(reason)
                case _:
                    self._next = action
        show_leads(self.leadership.term is not None)

    def _tell_fault(self, event: Event) -> None:
        """Log that Redis went away, and that it came back; once each."""
        has_fault = isinstance(event, StoreFailed)
        if has_fault != self._has_fault:
            self._has_fault = has_fault
            if isinstance(event, StoreFailed):
                _log.warning("lease out of reach", reason=event.reason)
            else:
                _log.info("lease in reach again")
