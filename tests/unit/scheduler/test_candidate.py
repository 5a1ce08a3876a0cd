"""Who stands for election: what Redis is asked when, and what becomes of its answers."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from typing import TypeVar, cast

import pytest
from structlog.testing import capture_logs

from chunkmesh.errors import CacheFault, InvariantViolated
from chunkmesh.kv_store import KvStore
from chunkmesh.store_thread import StoreThread
from scheduler.candidate import Candidate, Deeds, Election
from scheduler.leadership import (
    Event,
    Exchange,
    Holder,
    Leadership,
    LoneLeadership,
    LookAtLease,
    ReleaseLease,
)
from scheduler.mesh_lease import MeshLease
from tests.eventually import eventually
from tests.simulated_election import PlayedRedis

_Result = TypeVar("_Result")
_NAME = "me"


class _Store(StoreThread):
    """Stands for the client of a Redis that is played."""

    def __init__(self) -> None:
        """Connect to nothing."""
        self.is_closed = False

    async def call(self, work: Callable[[KvStore], _Result]) -> _Result:
        """Let work ask."""
        await asyncio.sleep(0)
        return work(cast("KvStore", None))

    def close(self) -> None:
        """Note it."""
        self.is_closed = True


class _Lease:
    """One scheduler's hand on a Redis that is played."""

    def __init__(self, redis: PlayedRedis) -> None:
        """Ask nothing yet."""
        self.asked: list[Exchange] = []
        self.has_bug = False
        self._redis = redis

    def exchange(self, _store: KvStore, exchange: Exchange, asked_s: float) -> Event:
        """Answer as Redis does."""
        self.asked.append(exchange)
        if self.has_bug and isinstance(exchange, LookAtLease):
            raise InvariantViolated("a bug of ours")
        if not self._redis.is_up:
            raise CacheFault("Redis is away")
        return self._redis.answer(exchange, _NAME, asked_s)


class _Scheduler:
    """A candidate and what it does."""

    def __init__(self) -> None:
        """Begin with a Redis that nobody has a lease in."""
        self.did: list[tuple[str, object]] = []
        self.redis = PlayedRedis()
        self.store = _Store()
        self.lease = _Lease(self.redis)
        self.ports: tuple[int, int] | None = None

    @property
    def deeds(self) -> Deeds:
        """Note all that is to be done."""
        return Deeds(
            lead=lambda term: self.did.append(("lead", term)),
            step_down=lambda _reason, active: self.did.append(("step down", active)),
            let_go=lambda _reason: self.did.append(("let go", None)),
            has_route=lambda: True,
        )

    @contextlib.asynccontextmanager
    async def standing(self) -> AsyncIterator[Candidate]:
        """Stand for election while inside."""

        def lease(users: int, workers: int) -> MeshLease:
            self.ports = users, workers
            return cast("MeshLease", self.lease)

        election = Election(store=self.store, lease=lease)
        candidate = Candidate(Leadership(_NAME), self.deeds, election)
        assert self.did == [], "nobody leads before Redis was asked"
        async with candidate.standing(users=1, workers=2):
            yield candidate


async def test_who_is_alone_leads_at_once_and_until_the_end() -> None:
    """There is nobody to ask; workers that have followed an earlier start are led by a new term."""
    scheduler = _Scheduler()
    candidate = Candidate(LoneLeadership(), scheduler.deeds)
    assert scheduler.did == [("lead", 1)]
    candidate.hear_term(5)
    assert scheduler.did == [("lead", 1), ("lead", 6)]
    async with candidate.standing(users=1, workers=2):
        assert candidate.leadership.term == 6
    assert candidate.leadership.term is None
    candidate.look_at_clock()
    assert len(scheduler.did) == 2


async def test_it_is_elected_and_gives_the_lease_back() -> None:
    """So that another one need not wait for the lease's end."""
    scheduler = _Scheduler()
    async with scheduler.standing():
        await eventually(lambda: scheduler.did == [("lead", 1)])
        assert scheduler.redis.holder is not None
        assert not scheduler.store.is_closed
    assert scheduler.ports == (1, 2)
    assert scheduler.lease.asked[-1] == ReleaseLease()
    assert scheduler.redis.holder is None
    assert scheduler.store.is_closed


async def test_a_leader_that_is_replaced_steps_down_and_names_who_leads() -> None:
    """As when its process was asleep for longer than its lease."""
    scheduler = _Scheduler()
    async with scheduler.standing():
        await eventually(lambda: bool(scheduler.did))
        scheduler.redis.holder = Holder(name="other", term=9, users="h:1")
        await eventually(lambda: scheduler.did[1:] == [("step down", "h:1")])
    assert scheduler.redis.holder.name == "other", "the lease of another one is not given back"


async def test_it_looks_now_and_then_and_not_all_the_time() -> None:
    """A standby that asked as fast as it can would load Redis and its own loop."""
    scheduler = _Scheduler()
    scheduler.redis.holder, scheduler.redis.until_s = Holder(name="other", term=9), float("inf")
    async with scheduler.standing() as candidate:
        looks = 0
        look_at_clock = candidate.look_at_clock

        def counted() -> None:
            nonlocal looks
            looks += 1
            look_at_clock()

        candidate.look_at_clock = counted  # type: ignore[method-assign]
        await eventually(lambda: len(scheduler.lease.asked) >= 2)
        assert len(scheduler.lease.asked) == 2
        assert looks < 60


async def test_a_redis_that_goes_and_comes_is_told_once_each() -> None:
    """An operator reads it in the log; a leader leads on meanwhile."""
    scheduler = _Scheduler()
    with capture_logs() as lines:
        async with scheduler.standing():
            await eventually(lambda: bool(scheduler.did))
            scheduler.redis.is_up, num_asked = False, len(scheduler.lease.asked)
            await eventually(lambda: len(scheduler.lease.asked) >= num_asked + 2)
            scheduler.redis.is_up, num_asked = True, len(scheduler.lease.asked)
            await eventually(lambda: len(scheduler.lease.asked) >= num_asked + 2)
            assert scheduler.did == [("lead", 1)]
    told = [line["event"] for line in lines if line["event"].startswith("lease")]
    assert told == ["lease out of reach", "lease in reach again"]


async def test_a_worker_that_has_followed_a_later_leader_is_a_reason_to_ask_at_once() -> None:
    """Whoever commands workers beside another leader must find out as soon as can be."""
    scheduler = _Scheduler()
    async with scheduler.standing() as candidate:
        await eventually(lambda: bool(scheduler.did))
        candidate.hear_term(7)
        await eventually(lambda: scheduler.did[1:] == [("lead", 8)])


async def test_a_bug_in_the_election_ends_the_scheduler() -> None:
    """It must not serve on without ever looking at the lease again."""
    scheduler = _Scheduler()
    scheduler.lease.has_bug = True
    with pytest.raises(ExceptionGroup) as failed:
        async with scheduler.standing():
            await asyncio.sleep(10)
    assert failed.group_contains(InvariantViolated)
    assert scheduler.store.is_closed
