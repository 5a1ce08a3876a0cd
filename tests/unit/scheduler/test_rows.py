"""Rows: the lowest first; stages forget only what they have heard of."""

from __future__ import annotations

import numpy as np

from scheduler.actions import PlannedEntry, PlannedSample, SendMicrobatch, SendRelease
from scheduler.rows import Rows
from tests.specs import GREEDY


def _microbatch(entry_row: int, sample_row: int) -> SendMicrobatch:
    """Return a microbatch that names two rows."""
    return SendMicrobatch(
        epoch=1,
        seq_no=0,
        entries=(
            PlannedEntry(request_id="a", row=entry_row, start=0, num_tokens=1, new_page_ids=()),
        ),
        token_ids=np.array([5], dtype=np.uint32),
        samples=(
            PlannedSample(
                entry=0,
                row=sample_row,
                child=1,
                position=0,
                sampling=GREEDY,
                forbidden_ids=(),
                seen=None,
            ),
        ),
    )


def test_lowest_first() -> None:
    """Stages keep tables by row: few of them when few run."""
    rows = Rows(5)
    assert rows.take(3) == [0, 1, 2]
    rows.give_back([1])
    assert rows.take(2) == [1, 3]
    assert (rows.num_free, rows.num_taken) == (1, 4)


def test_stages_forget_what_they_have_heard_of() -> None:
    """The last stage counts for rows that only a sample has named; other rows it never saw."""
    rows = Rows(4)
    rows.take(4)
    rows.name(_microbatch(1, 2))
    assert rows.give_back([0, 1, 2]) == [SendRelease(row=1), SendRelease(row=2)]
    rows.take(3)
    assert rows.give_back([1, 2]) == []
