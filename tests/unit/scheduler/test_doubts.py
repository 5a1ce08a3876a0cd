"""What failed lately, for how long it is not tried again, and when that is forgotten."""

from __future__ import annotations

from scheduler.doubts import FIRST_HOLD_S, LONGEST_HOLD_S, Doubts, pairs_of

_LINK = ("a", "b")
_OTHER = ("b", "c")


def _hold_s(doubts: Doubts, now_s: float) -> float:
    """Return how long the link is held from now, to a hundredth of a second."""
    return next(
        hundredths / 100
        for hundredths in range(1000)
        if not doubts.is_held(_LINK, now_s + hundredths / 100)
    )


def test_each_failure_holds_twice_as_long_up_to_a_limit() -> None:
    """A link that never works costs less and less; one that works again is soon found."""
    doubts = Doubts()
    holds = []
    for now_s in range(7):
        doubts.add(_LINK, now_s)
        holds.append(_hold_s(doubts, now_s))
    assert holds == [FIRST_HOLD_S, 0.2, 0.4, 0.8, 1.6, LONGEST_HOLD_S, LONGEST_HOLD_S]


def test_a_failure_says_nothing_of_others() -> None:
    """The workers at both ends of a link may be a route with somebody else."""
    doubts = Doubts()
    doubts.add(_LINK, 0.0)
    others = [_OTHER, ("b", "a"), ("a", "a"), ("b", "b")]
    assert [(doubts.has(each), doubts.is_held(each, 0.0)) for each in others] == [
        (False, False)
    ] * 4


def test_a_lifted_hold_leaves_the_doubt_and_its_length() -> None:
    """The failure may have been a death that was not known yet, but need not."""
    doubts = Doubts()
    doubts.add(_LINK, 0.0)
    doubts.lift_holds()
    assert not doubts.is_held(_LINK, 0.0)
    assert doubts.has(_LINK)
    doubts.add(_LINK, 0.01)
    assert _hold_s(doubts, 0.01) == 2 * FIRST_HOLD_S


def test_what_has_proved_itself_is_trusted_as_ever() -> None:
    """Its next failure is its first one."""
    doubts = Doubts()
    for pair in (_LINK, _LINK, _OTHER):
        doubts.add(pair, 0.0)
    doubts.forgive([_LINK, ("x", "y")])
    assert not doubts.has(_LINK)
    assert doubts.has(_OTHER)
    doubts.add(_LINK, 1.0)
    assert _hold_s(doubts, 1.0) == FIRST_HOLD_S


def test_an_old_failure_is_forgotten() -> None:
    """Else workers that have gone would be kept in mind for ever."""
    doubts = Doubts()
    doubts.add(_LINK, 0.0)
    doubts.add(_OTHER, 59.0)
    assert doubts.has(_LINK)
    doubts.add(_OTHER, 60.0)
    assert not doubts.has(_LINK)
    doubts.add(_LINK, 61.0)
    assert _hold_s(doubts, 61.0) == FIRST_HOLD_S


def test_a_route_has_links_and_workers() -> None:
    """A route that stands for long speaks for all of them."""
    assert pairs_of(("a", "b", "c")) == [("a", "b"), ("b", "c"), ("a", "a"), ("b", "b"), ("c", "c")]
