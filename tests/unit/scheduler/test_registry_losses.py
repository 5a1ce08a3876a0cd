"""The registry after losses and faults: who takes over, when, and who is asked again."""

from __future__ import annotations

import pytest

from scheduler.decisions import RouteAwaited, RouteBroke, SendReleased, SendStandBy
from scheduler.formation import Phase
from scheduler.registry import FORMING_S, FaultSide
from tests.hellos import (
    BASE,
    PATIENCE,
    TERM,
    attached,
    hello,
    joins,
    new_registry,
    of_kind,
    pair,
    stand,
)


def test_a_lost_worker_breaks_its_route_and_a_spare_forms_the_next() -> None:
    """The survivor keeps its pages; the spare joins a higher epoch at once."""
    registry = pair(("s", 3, 6), ("t", 0, 3))
    # s and t are a route of their own by now
    stand(registry, "ts")
    registry.attach(hello("u", 3, 6), 1.0)
    decisions = registry.lose("b", "gone", 1.0)
    assert of_kind(RouteBroke, decisions) == [RouteBroke(epoch=BASE + 1, reason="gone")]
    assert joins(decisions) == {BASE + 3: ["a", "u"]}
    assert of_kind(RouteAwaited, decisions) == [], "another route stands"


def test_survivors_go_before_older_spares() -> None:
    """Their pages have contents, those of a worker that was never a stage have none."""
    registry = attached(("o", 0, 3), ("a", 0, 3), ("b", 3, 6))
    assert registry.routes[BASE + 1].worker_ids == ("o", "b")
    stand(registry, "ob")
    decisions = registry.lose("o", "gone", 1.0)
    assert joins(decisions) == {BASE + 2: ["a", "b"]}
    stand(registry, "ab")
    registry.attach(hello("p", 0, 3), 1.0)
    registry.attach(hello("q", 3, 6), 1.0)
    stand(registry, "pq")
    registry.attach(hello("z", 0, 3), 1.0)
    registry.lose("b", "gone", 2.0)
    assert joins(registry.attach(hello("r", 3, 6), 3.0)) == {BASE + 4: ["a", "r"]}


def test_a_survivor_goes_before_a_spare_that_came_before_it() -> None:
    """Whoever came first is only preferred among those whose pages are alike."""
    registry = new_registry()
    registry.attach(hello("o", 0, 3), 0.0)
    registry.attach(hello("a", 0, 3, peer="host:b"), 0.0)
    registry.attach(hello("b", 3, 6), 0.0)
    assert registry.routes[BASE + 1].worker_ids == ("a", "b")
    stand(registry, "ab")
    registry.lose("b", "gone", 1.0)
    assert joins(registry.attach(hello("r", 3, 6), 2.0)) == {BASE + 2: ["a", "r"]}


def test_survivors_without_a_spare_become_spares() -> None:
    """They hold themselves ready for what comes, and hear why nothing stands."""
    registry = pair()
    decisions = registry.lose("b", "gone", 1.0)
    reason = "no worker holds layers 3-5"
    assert of_kind(SendStandBy, decisions) == [SendStandBy(worker_id="a", reason=reason)]
    assert joins(registry.attach(hello("c", 3, 6), 2.0)) == {BASE + 2: ["a", "c"]}


def test_a_better_tiling_does_not_regroup_what_stands() -> None:
    """Requests live where they are: a late --peer, or a spare with more room, changes nothing."""
    registry = new_registry()
    registry.attach(hello("a", 0, 3, peer="host:c"), 0.0)
    registry.attach(hello("b", 3, 6, capacity=32), 0.0)
    stand(registry, "ab")
    told = registry.attach(hello("c", 3, 6, capacity=3200), 1.0)
    assert told == [SendStandBy(worker_id="c", reason="")]
    assert registry.tick(100.0) == []
    assert [route.worker_ids for route in registry.standing()] == [("a", "b")]


def test_the_wish_of_a_worker_is_granted_where_it_costs_nothing() -> None:
    """`--peer` names the next stage as long as that one is free."""
    registry = attached(("x", 3, 6), ("y", 3, 6))
    granted = registry.attach(hello("a", 0, 3, peer="host:y"), 0.0)
    assert joins(granted) == {BASE + 1: ["a", "y"]}


def test_loss_of_a_spare_changes_nothing() -> None:
    """Only workers of a route carry requests."""
    registry = pair(("s", 3, 6))
    assert registry.lose("s", "gone", 1.0) == []
    assert registry.reason() == ""


def test_one_route_is_not_the_other() -> None:
    """What happens on a route must not touch another one."""
    registry = pair(("c", 0, 3), ("d", 3, 6))
    stand(registry, "cd")
    decisions = registry.lose("c", "gone", 1.0)
    assert decisions[0] == RouteBroke(epoch=BASE + 2, reason="gone")
    assert [route.worker_ids for route in registry.standing()] == [("a", "b")]
    assert registry.fault("c", BASE + 1, "not its route", 1.0) == []


def test_a_fault_of_the_same_workers_is_followed_by_pauses_that_double() -> None:
    """A link that cannot stand must not make the mesh form routes without end."""
    registry = pair()
    now_s, pauses = 10.0, []
    for _ in range(7):
        decisions = registry.fault("a", registry.epoch, "broke", now_s, side=FaultSide.OUTBOUND)
        assert joins(decisions) == {}
        failed_s = now_s
        while not joins(registry.tick(now_s)):
            now_s = round(now_s + 0.05, 2)
        pauses.append(round(now_s - failed_s, 2))
        stand(registry, "ab", now_s=now_s)
    assert pauses == pytest.approx([0.1, 0.2, 0.4, 0.8, 1.6, 2.0, 2.0], abs=0.051)


def test_a_route_that_has_stood_for_a_while_is_trusted_again() -> None:
    """What failed this morning says nothing about the next failure."""
    registry = pair()
    for now_s in (10.0, 20.0):
        registry.fault("a", registry.epoch, "broke", now_s, side=FaultSide.OUTBOUND)
        assert joins(registry.tick(now_s + 0.05)) == {}
        assert joins(registry.tick(now_s + 0.1)) != {}
        stand(registry, "ab", now_s=now_s + 0.2)
        assert registry.tick(now_s + 10.2) == []


def test_a_fault_before_the_loss_that_caused_it_costs_no_pause() -> None:
    """The neighbours of a killed worker are often heard before its stream's end."""
    registry = attached(("a", 0, 2), ("b", 2, 4), ("c", 4, 6))
    stand(registry, "abc")
    registry.attach(hello("s", 2, 4), 0.0)
    registry.fault("c", registry.epoch, "the peer is gone", 1.0, side=FaultSide.INBOUND)
    epoch = registry.epoch
    assert registry.routes[epoch].worker_ids == ("a", "s", "c"), "b is avoided at once"
    assert registry.fault("a", BASE + 1, "the peer is gone", 1.001) == [], "it is known"
    assert registry.lose("b", "its stream ended", 1.002) == []
    assert list(registry.routes) == [epoch]


def test_a_fault_and_a_loss_without_a_spare_wait_for_no_pause() -> None:
    """Whoever comes next is not the one that failed."""
    registry = pair()
    registry.fault("a", registry.epoch, "the peer is gone", 1.0, side=FaultSide.OUTBOUND)
    registry.lose("b", "its stream ended", 1.001)
    assert joins(registry.attach(hello("c", 3, 6), 1.01)) == {BASE + 2: ["a", "c"]}


@pytest.mark.parametrize(
    ("side", "spare", "expected"),
    [
        (FaultSide.OUTBOUND, "z", ["a", "b", "z"]),
        (FaultSide.INBOUND, "x", ["x", "b", "c"]),
        (FaultSide.INBOUND, "y", ["a", "y", "c"]),
        (FaultSide.STAGE, "y", ["a", "y", "c"]),
        (FaultSide.OUTBOUND, "x", None),
        (FaultSide.STAGE, "z", None),
    ],
)
def test_a_spare_takes_over_at_once_where_it_avoids_what_failed(
    side: FaultSide, spare: str, expected: list[str] | None
) -> None:
    """Another one would not help: then the same workers try again, after a pause."""
    registry = attached(("a", 0, 2), ("b", 2, 4), ("c", 4, 6))
    stand(registry, "abc")
    first = 2 * "xyz".index(spare)
    registry.attach(hello(spare, first, first + 2), 0.0)
    formed = joins(registry.fault("b", registry.epoch, "broke", 1.0, side=side))
    assert formed == ({} if expected is None else {BASE + 2: expected})


def test_the_link_to_a_late_worker_is_avoided_when_it_comes_back() -> None:
    """It may have waited for what a cut link swallowed: the same link would be waited for again."""
    registry = attached(("a", 0, 2), ("b", 2, 4), ("c", 4, 6))
    stand(registry, "abc")
    registry.attach(hello("x", 0, 2), 0.0)
    registry.lose("b", "beyond its deadline", 1.0, is_late=True)
    assert joins(registry.attach(hello("b", 2, 4), 1.1)) == {BASE + 2: ["x", "b", "c"]}


def test_answers_of_an_old_epoch_are_ignored() -> None:
    """A late JoinReady must not open a route that its sender has left."""
    registry = attached(("a", 0, 3), ("b", 3, 6))
    registry.fault("a", BASE + 1, "x", 0.0)
    registry.tick(1.0)
    assert registry.epoch == BASE + 2
    assert registry.join_ready("a", BASE + 1) == []
    assert registry.join_ready("b", BASE + 1) == []
    assert registry.joined("a", BASE + 1, None, 0.0) == []
    assert registry.routes[BASE + 2].phase is Phase.JOINING


def test_a_route_that_does_not_form_in_time_is_tried_with_others() -> None:
    """A worker that never answers must not block the mesh; who answered is not to blame."""
    registry = attached(("a", 0, 3), ("b", 3, 6), ("s", 3, 6))
    registry.join_ready("a", registry.epoch)
    assert registry.tick(FORMING_S - 0.1) == []
    assert joins(registry.tick(FORMING_S)) == {BASE + 2: ["a", "s"]}


def test_who_answers_after_a_while_may_still_serve() -> None:
    """Without another worker the same ones are tried again."""
    registry = attached(("a", 0, 3), ("b", 3, 6))
    decisions = registry.tick(FORMING_S)
    assert joins(decisions) == {}
    assert registry.reason() == ("the route forms again soon: its stages did not connect in time")
    assert joins(registry.tick(FORMING_S + 0.1)) == {BASE + 2: ["a", "b"]}


def test_a_worker_that_leaves_hands_over_to_a_spare() -> None:
    """It is let go at once, and is part of no route again."""
    registry = pair(("s", 3, 6))
    decisions = registry.leave("b", 1.0)
    assert decisions[0] == RouteBroke(epoch=BASE + 1, reason="the worker of layers 3-5 is leaving")
    assert joins(decisions) == {BASE + 2: ["a", "s"]}
    assert decisions[-1] == SendReleased(worker_id="b")
    assert registry.leave("b", 1.1) == [], "it is said once"
    registry.lose("s", "gone", 2.0)
    assert list(registry.routes) == []
    assert registry.reason() == "no worker holds layers 3-5"


def test_a_spare_that_leaves_is_let_go_without_a_word_to_others() -> None:
    """It carries nothing."""
    registry = pair(("s", 3, 6))
    assert registry.leave("s", 1.0) == [SendReleased(worker_id="s")]
    assert registry.lose("s", "its stream ended", 1.1) == []


def test_a_route_that_forms_does_without_who_leaves() -> None:
    """It has never stood, so no request hears of it."""
    registry = attached(("a", 0, 3), ("b", 3, 6), ("s", 3, 6))
    decisions = registry.leave("b", 0.5)
    assert of_kind(RouteBroke, decisions) == []
    assert joins(decisions) == {BASE + 2: ["a", "s"]}


def test_who_leaves_while_a_lost_route_forms_again_has_a_successor_too() -> None:
    """Requests wait for that one, though what they lost before was a worker that died."""
    registry = pair(("s", 3, 6))
    (awaited,) = of_kind(RouteAwaited, registry.lose("b", "killed", 1.0))
    assert (awaited.wait_s, awaited.is_announced) == (5.0, False)
    (awaited,) = of_kind(RouteAwaited, registry.leave("s", 1.1))
    assert (awaited.wait_s, awaited.is_announced) == (PATIENCE.announced_s, True)


def test_who_leaves_beside_one_that_died_keeps_nobody_waiting() -> None:
    """Its successor alone would be of no use."""
    registry = pair()
    registry.lose("b", "killed", 1.0)
    (awaited,) = of_kind(RouteAwaited, registry.leave("a", 1.5))
    assert (awaited.wait_s, awaited.is_announced) == (1.0, False)


def test_a_spare_that_leaves_while_a_lost_route_forms_again_changes_no_wait() -> None:
    """What forms does without it."""
    registry = pair(("s", 3, 6), ("t", 3, 6))
    registry.lose("b", "killed", 1.0)
    assert of_kind(RouteAwaited, registry.leave("t", 1.1)) == []


def test_who_leaves_before_the_first_route_is_awaited_by_nobody() -> None:
    """No request has come yet."""
    registry = attached(("a", 0, 3), ("b", 3, 6))
    assert of_kind(RouteAwaited, registry.leave("a", 1.0)) == []


def test_nothing_is_remembered_of_who_is_gone() -> None:
    """Workers come and go for months, each under a name of its own."""
    registry = pair(("s", 3, 6))
    registry.leave("b", 1.0)
    stand(registry, "as")
    for worker_id in "sba":
        registry.lose(worker_id, "gone", 2.0)
    tables = (registry.workers, registry.leaving, registry.routes, registry._last_epochs)
    assert not any((*tables, registry._standing_by, registry._pools._pools))


def test_who_left_and_attaches_again_is_of_use_again() -> None:
    """Under the name that it had: its stream broke after it had changed its mind."""
    registry = pair()
    registry.leave("b", 1.0)
    registry.lose("b", "its stream ended", 2.0)
    assert {BASE + 2: ["a", "b"]} == joins(registry.attach(hello("b", 3, 6), 3.0))


def test_a_spare_that_attaches_again_is_told_again_why_it_waits() -> None:
    """It is another stream, and knows nothing."""
    registry = pair(("s", 3, 6))
    registry.lose("s", "its stream ended", 1.0)
    told = registry.attach(hello("s", 3, 6), 2.0)
    assert ["s"] == [each.worker_id for each in of_kind(SendStandBy, told)]


def test_a_term_never_lowers_an_epoch() -> None:
    """To lead again under the term of routes that stand must not make their epochs anew."""
    registry = pair()
    registry.lead(TERM)
    assert BASE + 1 == registry.epoch
    registry.lead(TERM - 1)
    assert BASE + 1 == registry.epoch
    registry.lead(TERM + 1)
    assert (TERM + 1) << 32 == registry.epoch


@pytest.mark.parametrize("change", ["attach", "lose", "leave"])
def test_what_failed_is_tried_at_once_when_workers_come_or_go(change: str) -> None:
    """The failure may have been the death of somebody that was not known yet."""
    registry = pair(("s", 3, 6))
    registry.fault("a", registry.epoch, "an error", 1.0)
    assert {} == joins(registry.tick(1.01))
    match change:
        case "attach":
            told = registry.attach(hello("c", 3, 6), 1.02)
        case "lose":
            told = registry.lose("s", "gone", 1.02)
        case _:
            told = registry.leave("s", 1.02)
    assert {BASE + 2: ["a", "b"]} == joins(told)
