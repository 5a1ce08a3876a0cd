"""What a worker may say of the terms that it has followed: the counter of terms has an end."""

from __future__ import annotations

import pytest

from chunkmesh.errors import InvalidRequest, Standby, Unavailable
from scheduler.candidate import Candidate, Deeds
from scheduler.leadership import (
    MAX_JUMP,
    MAX_TERM,
    TTL_S,
    Holder,
    Lead,
    Leadership,
    LeaseSeen,
    Leave,
    LoneLeadership,
    RenewLease,
    StepDown,
    StoreFailed,
    TermHeard,
    TermTaken,
    Tick,
)
from scheduler.standby import check_follows


class _Alone:
    """A scheduler without others."""

    def __init__(self) -> None:
        self.led: list[int] = []
        self.candidate = Candidate(
            LoneLeadership(),
            Deeds(
                lead=self.led.append,
                step_down=lambda _reason, _active: None,
                let_go=lambda _reason: None,
                has_route=lambda: False,
            ),
        )

    def hello(self, term: int, number: int = 0) -> None:
        """Hear of a worker that says to have seen an epoch."""
        check_follows(self.candidate, (self.led[-1] << 32) + 1, (term << 32) + number)


def test_a_restarted_scheduler_leads_above_what_workers_have_seen() -> None:
    """Also where there were very many before it."""
    alone = _Alone()
    alone.hello(1, 1)
    alone.hello(1, 7)
    alone.hello(MAX_JUMP + 1)
    assert [1, 2, MAX_JUMP + 2] == alone.led


@pytest.mark.parametrize("term", [MAX_JUMP + 2, MAX_TERM - 1, MAX_TERM, (1 << 32) - 1])
def test_a_term_that_nobody_can_have_had_is_refused(term: int) -> None:
    """It would spend the counter, and after that no scheduler could ever take over."""
    alone = _Alone()
    with pytest.raises(InvalidRequest, match=f"is of term {term}, .* at most {MAX_JUMP + 1};"):
        alone.hello(term)
    assert [1] == alone.led


def test_small_jumps_do_not_spend_the_counter_either() -> None:
    """A worker may come as often as it likes, each time with a little more."""
    alone = _Alone()
    alone.hello(MAX_JUMP - 1)
    alone.hello(MAX_JUMP + 1)
    with pytest.raises(InvalidRequest, match=f"term {MAX_JUMP + 2}, .* at most {MAX_JUMP + 1};"):
        alone.hello(MAX_JUMP + 2, 2)
    assert MAX_JUMP + 2 == alone.led[-1]


def test_who_has_left_names_no_limit() -> None:
    """Whatever the worker says, it is to look elsewhere."""
    alone = _Alone()
    alone.candidate.leadership.handle(Leave(), 0.0)
    with pytest.raises(Standby, match="shutting down"):
        alone.hello(MAX_TERM)


def _elected(term: int, leadership: Leadership, at_s: float) -> Leadership:
    """Let a scheduler that stands by win an election."""
    leadership.handle(Tick(has_route=False), at_s)
    leadership.handle(LeaseSeen(asked_s=at_s, holder=None, was_released=True), at_s)
    leadership.handle(TermTaken(term=term), at_s)
    won = LeaseSeen(asked_s=at_s, holder=Holder(name="me", term=term), left_s=TTL_S)
    assert [Lead(term=term)] == leadership.handle(won, at_s)
    return leadership


def test_a_leader_believes_as_much_above_the_term_of_its_election() -> None:
    """What workers have raised its term to since is no new beginning; another election is."""
    leadership = _elected(7, Leadership("me"), 0.0)
    assert 7 + MAX_JUMP == leadership.max_heard_term()
    assert [RenewLease()] == leadership.handle(TermHeard(term=900), 1.0)
    leadership.handle(LeaseSeen(asked_s=1.0, holder=Holder(name="me", term=901), left_s=TTL_S), 1.0)
    assert (901, 7 + MAX_JUMP) == (leadership.term, leadership.max_heard_term())
    leadership.handle(TermHeard(term=950), 2.0)
    (down,) = leadership.handle(StoreFailed(reason="away"), 2.0)
    assert isinstance(down, StepDown)
    _elected(1000, leadership, 9.0)
    assert 1000 + MAX_JUMP == leadership.max_heard_term()


def test_the_last_terms_are_left_for_schedulers() -> None:
    """However high the counter of Redis stands, one above what a worker says must be a term."""
    assert MAX_TERM - 1 == _elected(MAX_TERM - 5, Leadership("me"), 0.0).max_heard_term()


class _Unsure:
    """A candidate that hears of a term and has to ask Redis first."""

    def __init__(self, leadership: Leadership) -> None:
        self.leadership = leadership
        self.heard: list[int] = []

    def hear_term(self, term: int) -> None:
        self.heard.append(term)
        self.leadership.handle(TermHeard(term=term), 0.5)


def test_a_worker_waits_while_it_is_not_known_who_leads() -> None:
    """It must not be taken into an epoch below the one that it has seen."""
    unsure = _Unsure(_elected(7, Leadership("me"), 0.0))
    check_follows(unsure, 7 << 32, 6 << 32)  # type: ignore[arg-type]
    assert [] == unsure.heard
    with pytest.raises(Unavailable, match="term 7"):
        check_follows(unsure, 7 << 32, (7 << 32) + 1)  # type: ignore[arg-type]
    assert [7] == unsure.heard
