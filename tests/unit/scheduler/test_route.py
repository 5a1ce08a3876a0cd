"""Route: who gets a place, and who gets the page that is left."""

from __future__ import annotations

import pytest

from scheduler.actions import ReleaseLease, SendCancelLoad
from scheduler.engine_config import EngineConfig
from scheduler.events import RouteFormed
from scheduler.request import Request, RequestState
from scheduler.route import Route
from tests.specs import make_spec

_CONFIG = EngineConfig(
    page_tokens=16,
    chunked_prefill_tokens=64,
    max_running_requests=4,
    max_queued_requests=8,
    load_timeout_s=1.0,
    max_outstanding_stores=0,
)


def _route(num_pages: int) -> Route:
    """Return a route of one stage."""
    return Route(RouteFormed(epoch=1, num_stages=1, num_pages=num_pages), _CONFIG)


def _queued(arrival: int, prompt: int, num_outputs: int = 1) -> Request:
    """Return a request that waits for its place."""
    spec = make_spec(f"r{arrival}", prompt, max_new_tokens=99, num_outputs=num_outputs)
    return Request(spec=spec, arrival=arrival, state=RequestState.QUEUED)


def _decode(route: Route, request: Request, num_tokens: int = 1) -> None:
    """Let an admitted request get tokens."""
    for _ in range(num_tokens):
        request.output_ids.append(65)
        route.go_on(request)


def test_first_may_take_the_whole_pool() -> None:
    """What the door let in must get its place, or it waits for ever."""
    assert _route(4).has_place(_queued(0, 63))
    assert not _route(3).has_place(_queued(0, 63))


@pytest.mark.parametrize(("num_pages", "fits"), [(5, False), (6, True)])
def test_a_page_is_left_for_each_that_runs(num_pages: int, *, fits: bool) -> None:
    """Newcomers must not push others out with their next token: 2 run on 2 pages, 2 are wanted."""
    route = _route(num_pages)
    route.admit(_queued(0, 8), now_s=0.0)
    route.admit(_queued(1, 8), now_s=0.0)
    assert route.has_place(_queued(2, 20)) == fits


def test_rows_of_all_outputs_are_needed() -> None:
    """Outputs part without asking whether there is room."""
    route = _route(64)
    route.admit(_queued(0, 8), now_s=0.0)
    assert route.has_place(_queued(1, 8, num_outputs=3))
    assert not route.has_place(_queued(1, 8, num_outputs=4))
    route.admit(_queued(1, 8, num_outputs=3), now_s=0.0)
    assert (route.rows.num_free, route.pages.num_free) == (0, 64 - 1 - 3)


def test_oldest_gets_the_page_that_is_left() -> None:
    """It must always be able to finish, whoever asked before it."""
    route = _route(3)
    old, young = _queued(0, 8), _queued(1, 15)
    route.admit(old, now_s=0.0)
    route.admit(young, now_s=0.0)
    _decode(route, young, 2)
    _decode(route, old, 9)
    _, left = route.share_pages()
    assert len(old.table.page_ids) == 2
    assert left == [young]
    assert young.state is RequestState.WAITING
    assert route.pages.num_free == 1


def test_load_of_a_leaver_is_cancelled() -> None:
    """Nothing of it is in flight, so its pages are another's at once; its row was never named."""
    route = _route(3)
    old, young = _queued(0, 15), _queued(1, 31)
    young.load_end = young.num_match_pages = 1
    young.lease_id = "L"
    route.admit(old, now_s=0.0)
    route.admit(young, now_s=0.0)
    _decode(route, old, 2)
    actions, _ = route.share_pages()
    assert actions == [SendCancelLoad(epoch=1, load_id=0), ReleaseLease(lease_id="L")]
    assert (young.state, young.load_end) == (RequestState.WAITING, 0)
    assert len(old.table.page_ids) == 2


def test_shared_pages_outlive_the_first_that_leaves() -> None:
    """Outputs of one prompt end in any order."""
    route = _route(8)
    first = _queued(0, 40, num_outputs=2)
    route.admit(first, now_s=0.0)
    (other,) = route.fork(first)
    first.move(RequestState.FINISHED)
    route.leave(first)
    assert route.pages.num_free == 8 - 3
    other.move(RequestState.FINISHED)
    route.leave(other)
    assert route.is_at_rest()
