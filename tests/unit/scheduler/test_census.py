"""An operator sees how many requests run, and what the others wait for."""

from __future__ import annotations

from scheduler.census import census
from scheduler.request import Request, RequestState
from tests.specs import make_spec


def output(state: RequestState, *, row: int | None = None, epoch: int | None = 1) -> Request:
    """Return an output of some request."""
    request = Request(spec=make_spec("a", 1))
    request.state, request.row, request.epoch = state, row, epoch
    return request


def test_each_request_counts_once_by_what_it_waits_for() -> None:
    """HiCache's answer, a place, or a route; with a place it runs."""
    counted = census(
        [
            [output(RequestState.WAITING)],
            [output(RequestState.QUEUED)],
            [output(RequestState.QUEUED)],
            [output(RequestState.WAITING, epoch=None)],
            [output(RequestState.LOADING, row=0)],
        ]
    )
    assert counted.num_running == 1
    assert counted.num_waiting == {"cache": 1, "place": 2, "route": 1}


def test_a_request_runs_while_one_of_its_outputs_does() -> None:
    """One that was preempted waits, but its client still gets tokens."""
    counted = census([[output(RequestState.QUEUED), output(RequestState.DECODE, row=1)]])
    assert (counted.num_running, sum(counted.num_waiting.values())) == (1, 0)
