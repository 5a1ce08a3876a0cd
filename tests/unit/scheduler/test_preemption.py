"""Who leaves when pages run out."""

from __future__ import annotations

from scheduler.page_table import PageTable
from scheduler.preemption import choose_leavers
from scheduler.request import Request, RequestState, Reserve
from tests.specs import make_spec


def _running(
    arrival: int,
    num_pages: int,
    *,
    child: int = 0,
    num_shared: int = 0,
    state: RequestState = RequestState.DECODE,
    priority: int = 0,
) -> Request:
    """Return an output with pages of its own, and some that others of its request have as well."""
    first = 100 * arrival
    shared = list(range(first, first + num_shared))
    own = first + 10 * (child + 1)
    return Request(
        spec=make_spec(f"r{arrival}", 8, num_outputs=child + 1, priority=priority),
        arrival=arrival,
        child=child,
        state=state,
        table=PageTable(
            page_ids=[*shared, *range(own, own + num_pages - num_shared)],
            num_shared=num_shared,
        ),
    )


def _leavers(running: list[Request], waiting: list[Request], num_pages: int) -> list[Request]:
    """Choose."""
    return choose_leavers(running, waiting, num_pages=num_pages)


def test_youngest_leaves_whatever_it_does() -> None:
    """Who came first is served first, in whatever order they were admitted."""
    old, young = _running(0, 4), _running(3, 3, state=RequestState.LOADING)
    middle = _running(1, 3, state=RequestState.PREFILL)
    assert _leavers([young, old, middle], [old], 10) == [young]


def test_lowest_priority_leaves_however_old() -> None:
    """Who may wait gives way; of several of them the youngest."""
    old, young = _running(0, 4), _running(1, 3)
    low = [_running(2, 3, priority=-1), _running(3, 3, priority=-1)]
    outputs = [*low, old, young]
    assert _leavers(outputs, [old], 13) == [low[1]]
    assert _leavers(outputs, [old, young], 11) == [low[1], low[0]]
    oldest_low, high = _running(0, 4, priority=-1), _running(1, 4, priority=1)
    assert _leavers([oldest_low, high], [high], 8) == [oldest_low]


def test_of_one_request_the_last_child_leaves() -> None:
    """The order of all outputs has no ties."""
    first, last = _running(0, 3, num_shared=2), _running(0, 3, child=1, num_shared=2)
    assert _leavers([last, first], [first], 4) == [last]


def test_who_waits_may_leave_itself() -> None:
    """The youngest that asks for a page gives its own to the others that ask."""
    old, young = _running(0, 4), _running(1, 4)
    assert _leavers([old, young], [young], 8) == [young]
    assert _leavers([old, young], [old, young], 8) == [young]


def test_oldest_never_leaves() -> None:
    """It waits for pages that come back: with it, everybody could leave for everybody, for ever."""
    old = _running(0, 4)
    assert _leavers([old], [old], 4) == []


def test_nobody_leaves_for_pages_that_come_back() -> None:
    """Those of a leaver in flight will do; more would leave for nothing."""
    old, middle = _running(0, 4), _running(1, 4)
    leaver = _running(2, 2, state=RequestState.LEAVING)
    assert _leavers([old, middle, leaver], [old, middle], 10) == []
    assert _leavers([old, middle, leaver], [old, middle], 9) == [middle]


def test_as_many_leave_as_it_takes() -> None:
    """Three wait for a page each; the youngest has one, the next one two."""
    outputs = [_running(arrival, num_pages) for arrival, num_pages in enumerate((3, 3, 3, 2, 1))]
    assert _leavers(outputs, outputs[:3], 12) == [outputs[4], outputs[3]]


def test_pages_kept_for_outputs_to_come_are_counted() -> None:
    """A prompt of several outputs leaves with the pages of all."""
    old, young = _running(0, 4), _running(1, 3, state=RequestState.PREFILL)
    young.reserve = Reserve(rows=(5, 6), page_ids=(98, 99))
    assert _leavers([old, young], [old], 10) == []
    assert _leavers([old, young], [old], 9) == [young]


def test_shared_pages_are_counted_once() -> None:
    """Three outputs share two pages, and each has one of its own."""
    outputs = [_running(0, 3, child=child, num_shared=2) for child in range(3)]
    assert _leavers(outputs, outputs[:1], 6) == []
    assert _leavers(outputs, outputs[:1], 5) == [outputs[2]]
