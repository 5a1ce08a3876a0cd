"""StandingRoutes: which epochs are known, without remembering all of them for ever."""

from __future__ import annotations

import pytest

from chunkmesh.errors import InvariantViolated
from scheduler.engine_config import EngineConfig
from scheduler.events import RouteFormed, Stored
from scheduler.standing_routes import MAX_REMEMBERED, StandingRoutes

FIRST = 1 << 32


def _new() -> StandingRoutes:
    config = EngineConfig(
        page_tokens=4,
        chunked_prefill_tokens=16,
        max_running_requests=1,
        max_queued_requests=1,
        load_timeout_s=1.0,
        max_outstanding_stores=0,
        chunk_strategy="fixed",
    )
    return StandingRoutes(config, None)


def _formed(epoch: int) -> RouteFormed:
    return RouteFormed(epoch=epoch, num_stages=1, num_pages=2)


def _stored(epoch: int) -> Stored:
    return Stored(epoch=epoch, stage=0, store_id=1, stored=())


def _come_and_go(routes: StandingRoutes, first: int, num_routes: int) -> None:
    for epoch in range(first, first + num_routes):
        routes.form(_formed(epoch))
        routes.lose(epoch)


def test_memory_does_not_grow_with_the_routes_that_stood() -> None:
    """A mesh whose link fails every few seconds runs for months."""
    routes = _new()
    _come_and_go(routes, FIRST, 3 * MAX_REMEMBERED)
    assert MAX_REMEMBERED == len(routes._formed)


def test_a_message_of_a_forgotten_epoch_is_late_not_wrong() -> None:
    """What has left a worker before its route was lost may come at any time."""
    routes = _new()
    _come_and_go(routes, FIRST, MAX_REMEMBERED + 1)
    assert routes.of(_stored(FIRST)) is None
    assert routes.lose(FIRST) is None


@pytest.mark.parametrize("num_routes", [1, MAX_REMEMBERED + 1])
def test_an_epoch_that_never_was_is_a_bug(num_routes: int) -> None:
    """Also after some have been forgotten: the shell has mixed up its routes."""
    routes = _new()
    _come_and_go(routes, FIRST, num_routes)
    last = FIRST + num_routes - 1
    with pytest.raises(InvariantViolated, match=f"message of epoch {last + 1}"):
        routes.of(_stored(last + 1))
    with pytest.raises(InvariantViolated, match="formed before"):
        routes.form(_formed(last))


def test_a_route_stands_longer_than_its_epoch_is_remembered() -> None:
    """One that never fails, beside one whose workers come and go."""
    routes = _new()
    routes.form(_formed(FIRST))
    _come_and_go(routes, FIRST + 1, MAX_REMEMBERED)
    assert routes.of(_stored(FIRST)) is routes.find(FIRST) is not None
    with pytest.raises(InvariantViolated, match="formed before"):
        routes.form(_formed(FIRST))
    lost = routes.lose(FIRST)
    assert lost is not None
    assert len(routes) == 0


def test_a_route_that_was_begun_before_forgotten_ones_may_still_form() -> None:
    """Its pools may take long to make."""
    routes = _new()
    _come_and_go(routes, FIRST + 1, MAX_REMEMBERED + 1)
    assert routes.form(_formed(FIRST)) is routes.find(FIRST)


@pytest.mark.parametrize("stage", [-1, 1])
def test_a_stage_that_a_route_has_not_is_a_bug(stage: int) -> None:
    """Pages of the wrong stage would be taken for stored."""
    routes = _new()
    routes.form(_formed(FIRST))
    with pytest.raises(InvariantViolated, match=f"stage {stage}"):
        routes.of(Stored(epoch=FIRST, stage=stage, store_id=1, stored=()))
