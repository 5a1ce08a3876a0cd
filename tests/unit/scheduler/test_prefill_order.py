"""Who goes first."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from scheduler.prefill_order import Candidate, prefill_order
from scheduler.request import Request
from tests.specs import make_spec

_CLOCK = 10_000.0


def _candidate(
    arrival: int, rest: float, *, total: float = 0, age: float = 0, priority: int = 0
) -> Candidate:
    """Return a prompt of which nothing was sent, unless its total says more."""
    request = Request(spec=make_spec(f"r{arrival}", 8, priority=priority), arrival=arrival)
    return Candidate(request=request, rest=rest, total=max(total, rest), began_at=_CLOCK - age)


def _order(candidates: list[Candidate], owed: Candidate | None = None) -> list[int]:
    """Return arrivals in order, for a microbatch of 100."""
    request = owed.request if owed else None
    order = prefill_order(candidates, budget=100, clock=_CLOCK, owed=request)
    return [each.arrival for each in order.requests]


def test_short_ones_ride_ahead_up_to_half() -> None:
    """The long one keeps the other half; what does not ride goes behind it by its ratio."""
    candidates = [_candidate(0, 900), _candidate(1, 30), _candidate(2, 30), _candidate(3, 20)]
    assert _order(candidates) == [1, 3, 0, 2]


def test_short_ones_beyond_half_wait_behind_long_ones() -> None:
    """However old they are: else a stream of them would take the long one's half as well."""
    candidates = [_candidate(0, 900, age=90), *(_candidate(i, 30, age=900) for i in (1, 2, 3))]
    order = prefill_order(candidates, budget=100, clock=_CLOCK)
    assert [each.arrival for each in order.requests] == [1, 0, 2, 3]
    assert order.first_long is candidates[0].request


def test_the_tail_of_a_long_one_does_not_wait_among_short_ones() -> None:
    """By its ratio it would wait for all of them."""
    tail = _candidate(0, 20, total=900, age=900)
    candidates = [tail, *(_candidate(i, 40, age=300) for i in (1, 2))]
    order = prefill_order(candidates, budget=100, clock=_CLOCK)
    assert [each.arrival for each in order.requests] == [1, 0, 2]
    assert order.first_long is tail.request


def test_what_takes_several_chunks_does_not_ride() -> None:
    """It would be back in the next microbatch, and in the next."""
    assert _order([_candidate(0, 900), _candidate(1, math.inf, total=40)]) == [0, 1]


def test_shorter_passes_once_it_has_waited_long_enough() -> None:
    """A tenth of the length needs a tenth of the age."""
    long = _candidate(0, 1000, age=500)
    assert _order([long, _candidate(1, 100, age=40)]) == [0, 1]
    assert _order([long, _candidate(1, 100, age=60)]) == [1, 0]


def test_of_one_length_the_first_goes_on() -> None:
    """However much of each was sent."""
    first, second = _candidate(0, 900, total=1000, age=100), _candidate(1, 1000, age=100)
    assert _order([second, first]) == [0, 1]


def test_priority_goes_before_all_else() -> None:
    """Riders of lower priority included."""
    candidates = [
        _candidate(0, 10),
        _candidate(1, 900, priority=2),
        _candidate(2, 900, age=9000),
        _candidate(3, 10, priority=2),
    ]
    assert _order(candidates) == [3, 1, 0, 2]


def test_passed_long_one_is_owed() -> None:
    """Riders must not leave it no room again."""
    long, short = _candidate(0, 900), _candidate(1, 30)
    order = prefill_order([long, short], budget=100, clock=_CLOCK)
    assert order.first_long is long.request
    assert _order([long, short], owed=long) == [0, 1]


def test_who_is_owed_does_not_pass_a_higher_priority() -> None:
    """What waits below waits."""
    low, high = _candidate(0, 900), _candidate(1, 30, priority=1)
    assert _order([low, high], owed=low) == [1, 0]


@given(
    st.lists(
        st.tuples(st.floats(1, 1000), st.floats(0, 1000), st.integers(-2, 2)),
        min_size=1,
        max_size=20,
    )
)
def test_everybody_is_in_the_order_once(figures: list[tuple[float, float, int]]) -> None:
    """And nobody before one of higher priority; riders fit into half."""
    candidates = [
        _candidate(index, rest, age=age, priority=priority)
        for index, (rest, age, priority) in enumerate(figures)
    ]
    order = prefill_order(candidates, budget=100, clock=_CLOCK)
    assert sorted(each.arrival for each in order.requests) == [*range(len(figures))]
    priorities = [each.spec.priority for each in order.requests]
    assert priorities == sorted(priorities, reverse=True)
