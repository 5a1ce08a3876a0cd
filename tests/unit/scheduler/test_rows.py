"""Rows: the lowest first; stages forget only what they have heard of."""

from __future__ import annotations

from scheduler.actions import SendRelease
from scheduler.rows import Rows


def test_lowest_first() -> None:
    """Stages keep tables by row: few of them when few run."""
    rows = Rows(5, epoch=1)
    assert rows.take(3) == [0, 1, 2]
    rows.give_back([1])
    assert rows.take(2) == [1, 3]
    assert (rows.num_free, rows.num_taken) == (1, 4)


def test_stages_forget_what_they_have_heard_of() -> None:
    """Rows that were reserved and never sent mean nothing to them."""
    rows = Rows(4, epoch=1)
    rows.take(4)
    rows.name([1, 2])
    assert rows.give_back([0, 1, 2]) == [
        SendRelease(epoch=1, row=1),
        SendRelease(epoch=1, row=2),
    ]
    rows.take(3)
    assert rows.give_back([1, 2]) == []
