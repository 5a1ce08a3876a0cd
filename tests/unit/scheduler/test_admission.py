"""Admission: how many pages, who is refused, who is next."""

from __future__ import annotations

import dataclasses

import pytest

from chunkmesh.errors import ChunkMeshError, InvalidRequest, Overloaded
from scheduler.admission import (
    MAX_PASSED,
    Admission,
    new_tokens_that_fit,
    pages_at_start,
)
from scheduler.engine_config import EngineConfig
from scheduler.events import RequestSpec
from scheduler.fair_door import FairDoor
from scheduler.request import Request, RequestState
from tests.specs import make_spec

_CONFIG = EngineConfig(
    page_tokens=16,
    chunked_prefill_tokens=64,
    max_running_requests=8,
    max_queued_requests=2,
    load_timeout_s=1.0,
    max_outstanding_stores=0,
)


def _anybody(_request: Request) -> bool:
    """Have a place for everybody."""
    return True


def _queued(arrival: int, prompt: int, priority: int = 0) -> Request:
    """Return a request that waits for its place."""
    spec = make_spec(f"r{arrival}", prompt, priority=priority)
    return Request(spec=spec, arrival=arrival, state=RequestState.QUEUED)


def _refusal(spec: RequestSpec, num_pages: int) -> ChunkMeshError | None:
    """Return what is said when nobody waits."""
    return FairDoor(_CONFIG, lambda _user: ()).refusal(spec, num_pages=num_pages)


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "num_outputs", "num_pages"),
    [
        (31, 9, 1, 2),
        (32, 9, 1, 3),
        (33, 9, 1, 3),
        (31, 9, 4, 1 + 4),
        (32, 9, 4, 2 + 4),
        (33, 9, 4, 2 + 4),
        (15, 9, 2, 2),
        (32, 1, 1, 2),
        (32, 1, 4, 2),
    ],
)
def test_pages_at_start(prompt: int, max_new_tokens: int, num_outputs: int, num_pages: int) -> None:
    """Prompt + 1: one page short and the first decode step has none; one more is wasted."""
    spec = make_spec("a", prompt, max_new_tokens=max_new_tokens, num_outputs=num_outputs)
    assert pages_at_start(Request(spec=spec), _CONFIG) == num_pages


@pytest.mark.parametrize(("num_output", "num_pages"), [(15, 2), (16, 3), (17, 3)])
def test_a_resumed_output_needs_only_its_own_pages(num_output: int, num_pages: int) -> None:
    """Its known tokens and one more, as if they were the prompt of a request of its own."""
    spec = make_spec("a", 16, max_new_tokens=99, num_outputs=4)
    request = Request(spec=spec, child=2, output_ids=[1] * num_output)
    assert pages_at_start(request, _CONFIG) == num_pages


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "num_outputs", "fits_in"),
    [(40, 80, 1, 8), (40, 80, 3, 2 + 3 * 6), (32, 33, 2, 2 + 2 * 2), (32, 34, 2, 2 + 2 * 3)],
)
def test_the_door_lets_in_what_fits_the_pool(
    prompt: int, max_new_tokens: int, num_outputs: int, fits_in: int
) -> None:
    """Whoever is let in can end alone; whoever is refused could never hold all its pages."""
    spec = make_spec("a", prompt, max_new_tokens=max_new_tokens, num_outputs=num_outputs)
    assert _refusal(spec, fits_in) is None
    error = _refusal(spec, fits_in - 1)
    assert isinstance(error, InvalidRequest)
    assert f"need {fits_in} pages of 16 tokens, the pool has {fits_in - 1}" in str(error)


@pytest.mark.parametrize(
    ("prompt", "max_new_tokens", "num_outputs", "field"),
    [
        (129, 1, 1, "input"),
        (129, 1, 2, "input"),
        (120, 40, 1, "sampling_params.max_new_tokens"),
        (120, 40, 2, "sampling_params.max_new_tokens"),
        (40, 80, 2, "sampling_params.n"),
        (8, 1, 9, "sampling_params.n"),
    ],
)
def test_refusal_names_what_is_too_much(
    prompt: int, max_new_tokens: int, num_outputs: int, field: str
) -> None:
    """O11: the caller must know which of its values to change, for a pool of 8 pages and 8 rows."""
    spec = make_spec("a", prompt, max_new_tokens=max_new_tokens, num_outputs=num_outputs)
    error = _refusal(spec, 8)
    assert isinstance(error, InvalidRequest)
    assert error.field == field


@pytest.mark.parametrize("num_outputs", [1, 2, 3])
@pytest.mark.parametrize("num_pages", [3, 4, 8])
@pytest.mark.parametrize("prompt", [1, 15, 16, 17, 33, 48])
def test_new_tokens_that_fit_are_the_most(prompt: int, num_pages: int, num_outputs: int) -> None:
    """Two formulas for one pool: one token more must not fit, and that many must."""
    most = new_tokens_that_fit(prompt, num_outputs=num_outputs, num_pages=num_pages, page_tokens=16)
    fits = [
        _refusal(make_spec("a", prompt, max_new_tokens=n, num_outputs=num_outputs), num_pages)
        is None
        for n in range(1, 200)
    ]
    assert fits.count(True) == max(0, most)
    assert all(fits[: max(0, most)])


def test_the_clients_own_number_is_named() -> None:
    """It was cut to the context before; the cut value is none that the client knows."""
    spec = make_spec("a", 12, max_new_tokens=4084)
    error = _refusal(dataclasses.replace(spec, asked_new_tokens=2**32 - 1), 8)
    words = "max_new_tokens 4294967295 (of which the context leaves 4084) need 256 pages"
    assert words in str(error)


def test_queue_is_bounded() -> None:
    """Overload is told at the door, not kept as memory."""
    door, spec = FairDoor(_CONFIG, lambda _user: ()), make_spec("a", 8)
    door.waits(_queued(1, 8))
    assert door.refusal(spec, num_pages=8) is None
    door.waits(_queued(2, 8))
    assert isinstance(door.refusal(spec, num_pages=8), Overloaded)


def test_who_was_preempted_takes_its_old_place() -> None:
    """Else a long request would be overtaken by every later one, each time it gives way."""
    queue = Admission()
    spec = make_spec("a", 8, num_outputs=3)
    ages = [(2, 0), (5, 0), (1, 2), (1, 0), (0, 0), (5, 1)]
    for arrival, child in ages:
        state = RequestState.QUEUED
        queue.add(Request(spec=spec, arrival=arrival, child=child, state=state))
    order = []
    while (request := queue.take_next(_anybody)) is not None:
        order.append((request.arrival, request.child))
    assert order == sorted(ages)


def test_higher_priority_goes_first() -> None:
    """And among equals the older one."""
    queue = Admission()
    for arrival, priority in enumerate((0, -3, 7, 0, 7)):
        queue.add(_queued(arrival, 8, priority))
    order = []
    while (request := queue.take_next(_anybody)) is not None:
        order.append(request.arrival)
    assert order == [2, 4, 0, 3, 1]


def test_a_small_one_passes_one_that_waits_for_pages_but_not_for_ever() -> None:
    """A short prompt must not wait for a long one's pages, nor a long one for ever more short ones.

    The long one is next again when it has been passed so often; its own place then comes first.
    """
    queue = Admission()
    long = _queued(0, 1000)
    queue.add(long)
    for arrival in range(1, MAX_PASSED + 3):
        queue.add(_queued(arrival, 8))
    order = []
    while (request := queue.take_next(lambda request: request is not long)) is not None:
        order.append(request.arrival)
    assert order == [*range(1, MAX_PASSED + 1)]
    assert queue.take_next(_anybody) is long


def test_look_ahead_is_bounded() -> None:
    """A queue of a thousand that lack a place is not looked through for every message."""
    queue = Admission()
    for arrival in range(100):
        queue.add(_queued(arrival, 8))
    looked: list[Request] = []

    def has_place(request: Request) -> bool:
        looked.append(request)
        return False

    assert queue.take_next(has_place) is None
    assert [request.arrival for request in looked] == [*range(8)]


def test_a_pending_match_holds_nobody_back() -> None:
    """The older one is next again as soon as HiCache has answered."""
    queue = Admission()
    old = Request(spec=make_spec("a", 33), arrival=0)
    young = Request(spec=make_spec("b", 8), arrival=1, state=RequestState.QUEUED)
    queue.add(young)
    queue.add(old)
    assert queue.take_next(_anybody) is young
    assert queue.take_next(_anybody) is None
    old.move(RequestState.QUEUED)
    assert queue.take_next(_anybody) is old
    assert old.num_passed == 0


def test_only_who_waits_is_taken_out() -> None:
    """A running output ends while another of the same request waits."""
    queue = Admission()
    waiting = Request(spec=make_spec("a", 8, num_outputs=2), child=1)
    queue.add(waiting)
    queue.remove(dataclasses.replace(waiting, child=0))
    queue.remove(dataclasses.replace(waiting))
    assert len(queue) == 1
    queue.remove(waiting)
    assert len(queue) == 0
