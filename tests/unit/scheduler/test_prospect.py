"""How long requests wait while no route stands, and what spares hear of it."""

from __future__ import annotations

import pytest

from scheduler.decisions import Decision, RouteAwaited, SendStandBy
from scheduler.prospect import REFORM_S, Patience, Prospect
from scheduler.registry import FaultSide
from tests.hellos import PATIENCE, attached, hello, joins, of_kind, pair, stand


def awaited(decisions: list[Decision]) -> RouteAwaited:
    """Return the one word about the wait."""
    (found,) = of_kind(RouteAwaited, decisions)
    return found


def test_requests_wait_for_the_takeover_after_a_loss() -> None:
    """With nobody to take over they must end soon."""
    told = awaited(pair().lose("b", "gone", 1.0))
    assert told == RouteAwaited(
        wait_s=PATIENCE.takeover_s, reason="no worker holds layers 3-5", is_announced=False
    )


def test_requests_wait_longer_where_attached_workers_can_take_over() -> None:
    """A spare is there: it takes part of a second, unless something is wrong."""
    told = awaited(pair(("s", 3, 6)).lose("b", "gone", 1.0))
    assert (told.wait_s, told.reason) == (REFORM_S, "the route is forming")


def test_requests_wait_for_the_successor_of_who_left() -> None:
    """A restart that was announced parks what runs and what comes."""
    told = awaited(pair().leave("b", 1.0))
    assert (told.wait_s, told.is_announced) == (PATIENCE.announced_s, True)


def test_the_prospect_is_told_when_it_changes_and_only_then() -> None:
    """A spare that dies while it takes over leaves what is left of the first wait."""
    registry = pair(("s", 3, 6))
    registry.lose("b", "gone", 1.0)
    assert of_kind(RouteAwaited, registry.tick(1.2)) == []
    told = awaited(registry.lose("s", "gone, too", 1.5))
    assert told.wait_s == pytest.approx(PATIENCE.takeover_s - 0.5)
    assert of_kind(RouteAwaited, registry.tick(1.6)) == []
    told = awaited(registry.attach(hello("c", 3, 6), 9.0))
    assert told.wait_s == REFORM_S


def test_a_link_that_never_stands_does_not_keep_requests_for_ever() -> None:
    """Each new attempt has its chance within the same wait."""
    registry = pair()
    registry.fault("a", registry.epoch, "cut", 1.0, side=FaultSide.OUTBOUND)
    now_s, waits = 1.0, []
    while now_s < 20.0:
        now_s = round(now_s + 0.1, 1)
        decisions = registry.tick(now_s)
        if joins(decisions):
            fault = registry.fault("a", registry.epoch, "cut", now_s, side=FaultSide.OUTBOUND)
            decisions += fault
        waits += [now_s + each.wait_s for each in decisions if isinstance(each, RouteAwaited)]
    assert max(waits) <= max(1.0 + REFORM_S, now_s)
    assert waits == sorted(waits)


def test_no_wait_is_told_before_the_first_route() -> None:
    """Nobody has requests yet."""
    registry = attached(("a", 0, 3), ("b", 3, 6))
    decisions = registry.lose("b", "gone", 1.0)
    assert of_kind(RouteAwaited, decisions) == []


def test_no_wait_is_told_while_another_route_stands() -> None:
    """Requests move there at once."""
    registry = pair(("c", 0, 3), ("d", 3, 6))
    stand(registry, "cd")
    assert of_kind(RouteAwaited, registry.lose("a", "gone", 1.0)) == []
    assert awaited(registry.lose("c", "gone", 2.0)).wait_s == PATIENCE.takeover_s


def test_spares_hear_when_the_mesh_stops_and_goes_on_to_serve() -> None:
    """Their health tells the truth: ready to take over, or waiting like everybody."""
    registry = pair(("s", 0, 3))
    reason = "no worker holds layers 3-5"
    told = of_kind(SendStandBy, registry.lose("b", "gone", 1.0))
    assert told == [SendStandBy(worker_id=each, reason=reason) for each in "as"]
    told = of_kind(SendStandBy, registry.attach(hello("c", 3, 6), 2.0))
    assert told == [SendStandBy(worker_id="s", reason="the route is forming")]
    told = of_kind(SendStandBy, stand(registry, "ac"))
    assert told == [SendStandBy(worker_id="s", reason="")]


def test_who_leaves_does_not_shorten_a_wait() -> None:
    """Where the wait after a loss is longer than that for a successor, it had begun before."""
    prospect = Prospect(Patience(takeover_s=30.0, announced_s=2.0))
    prospect.lost(1.0, is_announced=False)
    prospect.announced(5.0)
    told = prospect.look(6.0, is_covered=False, reason="r")
    assert told == RouteAwaited(wait_s=25.0, reason="r", is_announced=True)
    told = prospect.look(7.5, is_covered=False, reason="r")
    assert told == RouteAwaited(wait_s=23.5, reason="r", is_announced=False)
