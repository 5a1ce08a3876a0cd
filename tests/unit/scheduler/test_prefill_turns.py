"""What is remembered of turns between microbatches."""

from __future__ import annotations

from scheduler.part import Part, take_chunk
from scheduler.prefill import Prefill
from scheduler.prefill_order import Candidate
from scheduler.prefill_turns import PrefillTurns
from scheduler.request import Request, RequestState
from tests.specs import make_spec


def _waiting(turns: PrefillTurns, arrival: int, num_tokens: int) -> Request:
    """Return an output whose prefill begins now."""
    request = Request(spec=make_spec(f"r{arrival}", num_tokens), arrival=arrival)
    request.move(RequestState.QUEUED)
    prefill = Prefill(start=0, end=num_tokens)
    turns.begin(prefill)
    request.start_prefill(prefill, hit_pages=0, now_s=0.0)
    return request


def _candidate(request: Request) -> Candidate:
    """Count in tokens."""
    prefill = request.prefill
    return Candidate(
        request=request,
        rest=prefill.end - prefill.next_start,
        total=prefill.end - prefill.start,
        began_at=prefill.began_at,
    )


def _take(turns: PrefillTurns, request: Request, *others: Request) -> Part:
    """Send the whole of a short one, in a microbatch of 100 with others that wait."""
    turns.order([_candidate(each) for each in (request, *others)], 100)
    part = take_chunk(request, request.prefill.end)
    turns.sent([part], part.end - part.start)
    return part


def test_long_one_without_room_goes_first_next_time() -> None:
    """Short ones that keep coming must not fill every microbatch."""
    turns = PrefillTurns()
    long, first, second = (
        _waiting(turns, index, tokens) for index, tokens in enumerate((900, 30, 20))
    )
    _take(turns, first, long)
    candidates = [_candidate(each) for each in (long, second)]
    assert list(turns.order(candidates, 100)) == [long, second]


def test_long_one_that_was_served_is_owed_nothing() -> None:
    """Else short ones would wait for all of it."""
    turns = PrefillTurns()
    long, short = _waiting(turns, 0, 900), _waiting(turns, 1, 20)
    turns.order([_candidate(long)], 100)
    turns.sent([take_chunk(long, 100)], 100)
    candidates = [_candidate(each) for each in (long, short)]
    assert list(turns.order(candidates, 100)) == [short, long]


def test_nothing_is_owed_to_one_that_has_left() -> None:
    """It may come back, at the end of the queue."""
    turns = PrefillTurns()
    long, first, second = (
        _waiting(turns, index, tokens) for index, tokens in enumerate((900, 30, 20))
    )
    _take(turns, first, long)
    turns.leave(long)
    candidates = [_candidate(each) for each in (long, second)]
    assert list(turns.order(candidates, 100)) == [second, long]


def test_age_is_what_was_sent_since_it_began() -> None:
    """Whatever was sent before does not make a late one old."""
    turns = PrefillTurns()
    early = _waiting(turns, 0, 900)
    _take(turns, _waiting(turns, 1, 30), early)
    late = _waiting(turns, 2, 900)
    _take(turns, _waiting(turns, 3, 20), early, late)
    assert [0.0, 30.0] == [_candidate(each).began_at for each in (early, late)]
