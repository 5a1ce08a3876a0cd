"""Where a microbatch's rows lie in the activation and in the pool."""

from __future__ import annotations

import numpy as np
import pytest

from chunkmesh.errors import InvariantViolated
from stage_worker.batch import MAX_RUNS, plan_batch
from stage_worker.orders import Entry, Microbatch
from stage_worker.page_table import PageTable, PageTables, SlotRun


def _entry(row: int, start: int, num_tokens: int, *pages: int) -> Entry:
    return Entry(row=row, start=start, num_tokens=num_tokens, new_page_ids=pages)


def _microbatch(*entries: Entry) -> Microbatch:
    return Microbatch(epoch=1, seq_no=0, entries=entries, token_ids=None, sampling=())


def _run(begin: int, end: int) -> SlotRun:
    return SlotRun(begin=begin, end=end)


def test_neighbouring_pages_are_one_run() -> None:
    """Views are cheaper than gathers, so neighbours must be seen, also across two extensions."""
    table = PageTable(4)
    table.extend((2, 3))
    table.extend((4, 9))
    assert table.slots(0, 16) == (_run(8, 20), _run(36, 40))


@pytest.mark.parametrize(
    ("first", "last", "expected"),
    [
        (0, 4, (_run(20, 24),)),
        (3, 5, (_run(23, 24), _run(8, 9))),
        (4, 8, (_run(8, 12),)),
        (7, 8, (_run(11, 12),)),
        (0, 0, ()),
    ],
)
def test_slots_are_cut_at_both_ends(first: int, last: int, expected: tuple[SlotRun, ...]) -> None:
    """A chunk begins and ends anywhere in its pages."""
    table = PageTable(4)
    table.extend((5, 2))
    assert expected == table.slots(first, last)


def test_positions_without_a_page_are_a_bug() -> None:
    """Never read or write behind the table."""
    table = PageTable(4)
    table.extend((5, 2))
    with pytest.raises(InvariantViolated, match="position 8"):
        table.slots(0, 9)


def test_chunk_and_decode_row() -> None:
    """A chunk sees what was before it; a decode row sees itself too."""
    tables = PageTables(num_pages=10, page_tokens=4)
    plan = plan_batch(_microbatch(_entry(0, 0, 6, 1, 2), _entry(7, 0, 1, 5)), tables)
    chunk, single = plan.parts
    assert plan.positions_T.tolist() == [0, 1, 2, 3, 4, 5, 0]
    assert (chunk.first_row, chunk.num_rows, chunk.last_row) == (0, 6, 5)
    assert (chunk.context, chunk.written) == (None, (_run(4, 10),))
    assert (single.first_row, single.written) == (6, (_run(20, 21),))
    assert single.context is not None
    assert single.context.runs == (_run(20, 21),)
    plan = plan_batch(_microbatch(_entry(7, 1, 1), _entry(0, 6, 4, 3)), tables)
    single, chunk = plan.parts
    assert plan.positions_T.tolist() == [1, 6, 7, 8, 9]
    assert plan.positions_T.dtype == np.int64
    assert single.written == (_run(21, 22),)
    assert chunk.context is not None
    assert (chunk.context.num_tokens, chunk.context.runs) == (6, (_run(4, 10),))
    assert (chunk.through.num_tokens, chunk.written) == (10, (_run(10, 14),))


def test_many_runs_are_gathered() -> None:
    """Scattered pages are listed once, only those that the context reaches."""
    pages = tuple(range(0, 2 * (MAX_RUNS + 2), 2))
    tables = PageTables(num_pages=64, page_tokens=4)
    [part] = plan_batch(_microbatch(_entry(0, 4 * MAX_RUNS, 1, *pages)), tables).parts
    assert part.through.runs == ()
    assert part.through.page_ids == pages[: MAX_RUNS + 1]


def test_released_row_starts_empty() -> None:
    """Row numbers are used again."""
    tables = PageTables(num_pages=10, page_tokens=4)
    plan_batch(_microbatch(_entry(0, 0, 4, 1)), tables)
    tables.release(0)
    tables.release(5)
    [part] = plan_batch(_microbatch(_entry(0, 0, 4, 3)), tables).parts
    assert part.written == (_run(12, 16),)
