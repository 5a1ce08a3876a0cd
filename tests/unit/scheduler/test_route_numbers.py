"""Series are named by small numbers that come again, so that there are never more than routes."""

from __future__ import annotations

from scheduler.route_numbers import RouteNumbers


def test_a_route_keeps_its_number_while_it_stands() -> None:
    """Else its series would break when another one goes."""
    numbers = RouteNumbers()
    assert numbers.renew([7, 9]) == {7: 0, 9: 1}
    assert numbers.renew([9]) == {9: 1}


def test_a_number_that_is_free_is_given_again() -> None:
    """The lowest first, so that one route at a time is always 0."""
    numbers = RouteNumbers()
    numbers.renew([7, 9])
    assert numbers.renew([9, 11, 12]) == {9: 1, 11: 0, 12: 2}
    assert numbers.renew([]) == {}
    assert numbers.renew([13]) == {13: 0}
