"""Whom a caller of several servers asks next, and when."""

from __future__ import annotations

from chunkmesh.address import HostPort
from chunkmesh.dialling import Dialling

A, B, C = (HostPort(host="h", port=port) for port in (1, 2, 3))


def half() -> float:
    """Be dice that always show the middle."""
    return 0.5


def test_the_list_is_followed_in_order() -> None:
    """Each that does not answer is passed over; the first to be due again is asked again."""
    dialling = Dialling([A, B, C], half)
    asked = []
    for _ in range(5):
        server, wait_s = dialling.next(0.0)
        asked.append((server, round(wait_s, 3)))
        dialling.failed(server, 0.0)
    assert [(A, 0.0), (B, 0.0), (C, 0.0), (A, 0.1), (B, 0.1)] == asked


def test_who_does_not_answer_is_left_alone_longer_each_time() -> None:
    """Up to a limit: a scheduler that comes back after an hour is found within seconds."""
    dialling = Dialling([A], half)
    waits = []
    for _ in range(7):
        waits.append(round(dialling.next(0.0)[1], 3))
        dialling.failed(A, 0.0)
    assert [0.0, 0.1, 0.2, 0.4, 0.8, 1.6, 2.0] == waits


def test_who_names_a_time_is_not_asked_before() -> None:
    """RetryInfo is a promise that asking sooner is in vain; later, so that not all come at once."""
    for dice in (0.0, 0.5, 0.999):
        dialling = Dialling([A], lambda dice=dice: dice)  # type: ignore[misc]
        dialling.refused(A, 10.0, retry_after_s=0.5)
        assert 0.5 <= dialling.next(10.0)[1] < 0.75


def test_a_standby_is_asked_again_before_one_that_is_silent() -> None:
    """The silent one was active; the standby will be."""
    dialling = Dialling([A, B], half)
    dialling.failed(A, 0.0, at_least_s=2.0)
    dialling.refused(B, 0.0, retry_after_s=0.5)
    assert (B, 0.625) == dialling.next(0.0)


def test_who_serves_is_asked_first() -> None:
    """The next call does not begin at a standby."""
    dialling = Dialling([A, B], half)
    dialling.refused(A, 0.0, retry_after_s=0.5)
    dialling.served(B)
    assert (B, 0.0) == dialling.next(100.0)


def test_what_failed_before_it_served_is_forgotten() -> None:
    """A restart after hours is asked for as often as the first one."""
    dialling = Dialling([A], half)
    for _ in range(9):
        dialling.failed(A, 0.0)
    dialling.served(A)
    dialling.failed(A, 0.0)
    assert (A, 0.1) == dialling.next(0.0)
