"""The rules of the lease and of terms, one by one, with a clock that the test moves."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from scheduler.leadership import (
    LET_GO_S,
    LOOK_S,
    TTL_S,
    Action,
    Holder,
    Lead,
    Leadership,
    LeaseSeen,
    Leave,
    LetWorkersGo,
    LoneLeadership,
    LookAtLease,
    ReleaseLease,
    RenewLease,
    SeizeLease,
    StepDown,
    StoreFailed,
    TakeTerm,
    TermHeard,
    TermTaken,
    Tick,
)

TICK = Tick(has_route=True)
IDLE = Tick(has_route=False)
OTHER = Holder(name="other", term=4, users="10.0.0.2:50051", workers="10.0.0.2:50052")


def mine(term: int) -> Holder:
    """Return the lease as this scheduler has written it."""
    return Holder(name="me", term=term, users="10.0.0.1:50051")


def seen(holder: Holder | None, at_s: float, **more: bool) -> LeaseSeen:
    """Return an answer that came at once."""
    left_s = 0.0 if holder is None else TTL_S
    return LeaseSeen(asked_s=at_s, holder=holder, left_s=left_s, **more)


def leader(term: int = 1) -> Leadership:
    """Return a scheduler that has begun to lead at 0."""
    leadership = Leadership("me")
    leadership.handle(IDLE, 0.0)
    leadership.handle(seen(None, 0.0), 0.0)
    leadership.handle(TermTaken(term=term), 0.0)
    assert [Lead(term=term)] == leadership.handle(seen(mine(term), 0.0), 0.0)
    return leadership


def test_the_first_scheduler_takes_a_term_and_then_the_lease() -> None:
    """The lease tells the term, so the term comes first."""
    leadership = Leadership("me")
    assert [LookAtLease()] == leadership.handle(IDLE, 0.0)
    assert [TakeTerm(above=0)] == leadership.handle(seen(None, 0.0), 0.0)
    assert [SeizeLease(term=7)] == leadership.handle(TermTaken(term=7), 0.0)
    assert "standby; none is active yet" == leadership.standby_reason()
    assert [Lead(term=7)] == leadership.handle(seen(mine(7), 0.0), 0.0)
    assert (7, "") == (leadership.term, leadership.standby_reason())


def test_a_lease_that_another_one_got_first() -> None:
    """The term that was taken in vain is nobody's; the one who leads is named."""
    leadership = Leadership("me")
    leadership.handle(IDLE, 0.0)
    leadership.handle(seen(None, 0.0), 0.0)
    leadership.handle(TermTaken(term=3), 0.0)
    assert [] == leadership.handle(seen(OTHER, 0.0), 0.0)
    assert leadership.term is None
    assert "standby; active is 10.0.0.2:50051" == leadership.standby_reason()


def test_one_question_at_a_time() -> None:
    """A Redis that hangs gets no heap of questions."""
    leadership = Leadership("me")
    assert [LookAtLease()] == leadership.handle(IDLE, 0.0)
    assert [] == leadership.handle(IDLE, 100.0)


def test_a_lease_that_ended_is_taken_at_the_next_look() -> None:
    """A leader that was killed is followed as soon as its lease is over."""
    leadership = Leadership("me")
    leadership.handle(IDLE, 0.0)
    leadership.handle(LeaseSeen(asked_s=0.0, holder=OTHER, left_s=0.2), 0.0)
    assert [LookAtLease()] == leadership.handle(IDLE, LOOK_S)
    assert [TakeTerm(above=4)] == leadership.handle(seen(None, LOOK_S), LOOK_S)


def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    """After a clean stop nobody waits."""
    leadership = Leadership("me")
    leadership.handle(IDLE, 0.0)
    leadership.handle(seen(OTHER, 0.0), 0.0)
    leadership.handle(IDLE, LOOK_S)
    actions = leadership.handle(seen(None, LOOK_S, was_released=True), LOOK_S)
    assert [TakeTerm(above=4)] == actions


def test_a_lease_that_redis_lost_is_left_to_its_holder() -> None:
    """A flush is no reason to take over: the leader sets its lease again, its requests run on."""
    leadership = Leadership("me")
    leadership.handle(IDLE, 0.0)
    leadership.handle(seen(OTHER, 0.0), 0.0)
    leadership.handle(IDLE, LOOK_S)
    assert [] == leadership.handle(seen(None, LOOK_S), LOOK_S)
    leadership.handle(IDLE, TTL_S)
    assert [TakeTerm(above=4)] == leadership.handle(seen(None, TTL_S), TTL_S)


def test_redis_that_comes_back_empty_is_left_to_the_holder_too() -> None:
    """While Redis was away nobody knows who led."""
    leadership = Leadership("me")
    leadership.handle(IDLE, 0.0)
    leadership.handle(StoreFailed(reason="Redis: gone"), 0.0)
    assert "standby; Redis: gone" == leadership.standby_reason()
    leadership.handle(IDLE, 50.0)
    assert [] == leadership.handle(seen(None, 50.0), 50.0)
    leadership.handle(IDLE, 50.0 + TTL_S)
    assert [TakeTerm(above=0)] == leadership.handle(seen(None, 53.0), 50.0 + TTL_S)


def test_a_win_that_was_heard_too_late_is_none() -> None:
    """Whoever slept between question and answer asks again: the lease may be another's by now."""
    leadership = Leadership("me")
    leadership.handle(IDLE, 0.0)
    leadership.handle(seen(None, 0.0), 0.0)
    leadership.handle(TermTaken(term=1), 0.0)
    assert [] == leadership.handle(seen(mine(1), 0.0), 60.0)
    assert [LookAtLease()] == leadership.handle(IDLE, 60.0)


def test_a_leader_renews_and_leads_on_without_redis() -> None:
    """Losing Redis costs nobody a request."""
    leadership = leader()
    assert [RenewLease()] == leadership.handle(TICK, LOOK_S)
    assert [] == leadership.handle(StoreFailed(reason="gone"), LOOK_S)
    for at_s in (10.0, 20.0, 30.0):
        assert [RenewLease()] == leadership.handle(TICK, at_s)
        assert [] == leadership.handle(StoreFailed(reason="gone"), at_s)
    assert 1 == leadership.term


def test_a_leader_sets_a_lost_lease_again() -> None:
    """Under the same term: nobody else has led meanwhile."""
    leadership = leader()
    leadership.handle(TICK, LOOK_S)
    assert [SeizeLease(term=1)] == leadership.handle(seen(None, LOOK_S), LOOK_S)
    assert [] == leadership.handle(seen(mine(1), LOOK_S), LOOK_S)
    assert 1 == leadership.term


def test_a_leader_that_finds_another_one_steps_down() -> None:
    """It was asleep, or Redis was out of its reach; the other one has a higher term."""
    leadership = leader()
    leadership.handle(TICK, 60.0)
    (action,) = leadership.handle(seen(OTHER, 60.0), 60.0)
    assert StepDown(reason="10.0.0.2:50051 has the lease, term 4") == action
    assert "standby; active is 10.0.0.2:50051" == leadership.standby_reason()


def test_a_worker_with_a_higher_term_makes_a_leader_ask() -> None:
    """With the lease still its own, Redis forgot the terms: a higher one is taken."""
    leadership = leader()
    assert [RenewLease()] == leadership.handle(TermHeard(term=9), 0.01)
    assert [TakeTerm(above=9)] == leadership.handle(seen(mine(1), 0.01), 0.01)
    assert [SeizeLease(term=10)] == leadership.handle(TermTaken(term=10), 0.02)
    assert [Lead(term=10)] == leadership.handle(seen(mine(10), 0.02), 0.02)


def test_a_worker_with_a_higher_term_and_no_redis_is_the_end_of_leading() -> None:
    """Somebody else was elected where this scheduler could not see it."""
    leadership = leader()
    leadership.handle(TermHeard(term=9), 0.01)
    (action,) = leadership.handle(StoreFailed(reason="gone"), 0.01)
    assert StepDown(reason="workers have followed term 9") == action


def test_a_leader_without_lease_and_route_lets_workers_look_elsewhere() -> None:
    """Workers split between two schedulers would wait for each other for ever."""
    leadership = leader()
    leadership.handle(IDLE, LOOK_S)
    leadership.handle(StoreFailed(reason="gone"), LOOK_S)
    leadership.handle(IDLE, TTL_S)
    leadership.handle(StoreFailed(reason="gone"), TTL_S)
    actions = leadership.handle(IDLE, TTL_S + LET_GO_S)
    assert LetWorkersGo in map(type, actions)
    assert 1 == leadership.term


@pytest.mark.parametrize("renewed_s", [0.0, 2.0])
def test_workers_stay_while_nobody_else_can_hold_the_lease(renewed_s: float) -> None:
    """A leader that has just won or renewed is who they would find anywhere else."""
    leadership = leader()
    if renewed_s:
        leadership.handle(IDLE, renewed_s)
        leadership.handle(seen(mine(1), renewed_s), renewed_s)
    sure_until_s, let_go_s = renewed_s + TTL_S, []
    for step in range(round(20.0 * (renewed_s + TTL_S + 2 * LET_GO_S))):
        now_s = renewed_s + 0.05 * step
        actions = leadership.handle(IDLE, now_s)
        if actions:
            let_go_s += [now_s for each in actions if isinstance(each, LetWorkersGo)]
            leadership.handle(StoreFailed(reason="gone"), now_s)
    assert [sure_until_s + LET_GO_S] == pytest.approx(let_go_s[:1], abs=0.06)
    assert all(pause_s >= LET_GO_S for pause_s in _pauses(let_go_s))


def _pauses(times_s: list[float]) -> list[float]:
    return [after - before for before, after in itertools.pairwise(times_s)]


def test_the_wait_without_a_route_begins_anew_after_one() -> None:
    """Workers that form a route after a while are not let go a moment after that one breaks."""
    leadership = leader()
    for at_s, tick in ((4.0, IDLE), (6.0, TICK), (10.0, IDLE), (14.9, IDLE)):
        assert LetWorkersGo not in map(type, leadership.handle(tick, at_s))
        leadership.handle(StoreFailed(reason="gone"), at_s)
    assert LetWorkersGo in map(type, leadership.handle(IDLE, 10.0 + LET_GO_S))


def test_a_worker_with_the_same_term_and_no_redis_is_the_end_of_leading() -> None:
    """Redis that lost its terms has given this one out twice: one of the two must go."""
    leadership = leader(term=9)
    assert [RenewLease()] == leadership.handle(TermHeard(term=9), 0.01)
    (action,) = leadership.handle(StoreFailed(reason="gone"), 0.01)
    assert StepDown(reason="workers have followed term 9") == action


def test_a_worker_with_the_same_term_makes_a_leader_take_another() -> None:
    """As with a higher one: no two leaders may ever have made epochs of one term."""
    leadership = leader(term=9)
    leadership.handle(TermHeard(term=9), 0.01)
    assert [TakeTerm(above=9)] == leadership.handle(seen(mine(9), 0.01), 0.01)


@pytest.mark.parametrize("term", [3, 4])
def test_a_lease_under_a_term_that_another_has_led_is_not_enough(term: int) -> None:
    """Redis was flushed between two looks, and its counter began anew."""
    leadership = Leadership("me")
    leadership.handle(IDLE, 0.0)
    leadership.handle(seen(OTHER, 0.0), 0.0)
    leadership.handle(IDLE, 10.0)
    assert [TakeTerm(above=4)] == leadership.handle(seen(None, 10.0), 10.0)
    leadership.handle(TermTaken(term=term), 10.0)
    assert [TakeTerm(above=4)] == leadership.handle(seen(mine(term), 10.0), 10.0)
    assert leadership.term is None


def test_the_highest_term_of_others_counts_not_the_last() -> None:
    """Redis may forget its counter, and somebody who had seen less lead for a moment."""
    leadership = Leadership("me")
    for at_s, term in ((0.0, 4), (10.0, 2)):
        leadership.handle(IDLE, at_s)
        leadership.handle(seen(dataclasses.replace(OTHER, term=term), at_s), at_s)
    leadership.handle(IDLE, 20.0)
    assert [TakeTerm(above=4)] == leadership.handle(seen(None, 20.0), 20.0)


def test_what_is_asked_while_a_term_is_taken_waits() -> None:
    """A renewal in between would take the place of the question that is under way."""
    leadership = Leadership("me")
    leadership.handle(IDLE, 0.0)
    assert [TakeTerm(above=0)] == leadership.handle(seen(None, 0.0), 0.0)
    assert [] == leadership.handle(IDLE, 50.0)
    assert [SeizeLease(term=1)] == leadership.handle(TermTaken(term=1), 50.0)
    assert [] == leadership.handle(IDLE, 100.0)
    leading = leader()
    leading.handle(TermHeard(term=9), 0.01)
    assert [TakeTerm(above=9)] == leading.handle(seen(mine(1), 0.01), 0.01)
    assert [] == leading.handle(TermHeard(term=10), 50.0)
    leading.handle(StoreFailed(reason="gone"), 51.0)
    lost = leader()
    lost.handle(TICK, LOOK_S)
    assert [SeizeLease(term=1)] == lost.handle(seen(None, LOOK_S), LOOK_S)
    assert [] == lost.handle(TICK, 50.0)


@pytest.mark.parametrize("leadership", [leader(), Leadership("me")])
def test_who_leaves_gives_the_lease_back_and_stays_away(leadership: Leadership) -> None:
    """Also when it was only about to get it; late answers change nothing."""
    assert [ReleaseLease()] == leadership.handle(Leave(), 1.0)
    late = (TermTaken(term=2), seen(mine(2), 1.0), seen(None, 1.0), TermHeard(term=8), TICK)
    assert [[]] * 5 == [leadership.handle(event, 9.0) for event in late]
    assert "the scheduler is shutting down" == leadership.standby_reason()


def test_who_is_alone_leads_at_once_and_above_what_workers_have_seen() -> None:
    """A lone scheduler that was started again has to be followed by the same workers."""
    alone = LoneLeadership()
    actions: list[Action] = alone.handle(IDLE, 0.0)
    assert [Lead(term=1)] == actions
    assert [Lead(term=2)] == alone.handle(TermHeard(term=1), 1.0)
    assert [] == alone.handle(TermHeard(term=1), 1.0)
    assert [Lead(term=6)] == alone.handle(TermHeard(term=5), 1.0)
    assert "" == alone.standby_reason()
    assert [] == alone.handle(Leave(), 2.0)
    assert "the scheduler is shutting down" == alone.standby_reason()
