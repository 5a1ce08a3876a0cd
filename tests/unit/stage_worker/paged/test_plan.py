"""Which pages must be cleared before a microbatch: those that hold nothing and are not filled."""

from __future__ import annotations

import pytest

from stage_worker.orders import Entry, Microbatch
from stage_worker.paged.plan import plan_pages
from stage_worker.paged.tables import PageArrays

PAGE_TOKENS = 4


def microbatch(*entries: Entry) -> Microbatch:
    """Return one of these entries."""
    return Microbatch(epoch=1, seq_no=0, entries=entries, token_ids=None, sampling=())


def entry(start: int, num_tokens: int, *pages: int, row: int = 0) -> Entry:
    """Return an entry that grows its row by pages."""
    return Entry(row=row, start=start, num_tokens=num_tokens, new_page_ids=pages)


@pytest.mark.parametrize(
    ("num_tokens", "unfilled"), [(7, [5]), (8, []), (9, [2]), (4, [5]), (3, [7, 5])]
)
def test_pages_that_are_not_filled(num_tokens: int, unfilled: list[int]) -> None:
    """Page borders at -1, 0 and +1, and pages that are handed out ahead."""
    pages = (7, 5, 2) if num_tokens > 8 else (7, 5)
    plan = plan_pages(
        microbatch(entry(0, num_tokens, *pages)), PageArrays(num_pages=9, page_tokens=PAGE_TOKENS)
    )
    assert unfilled == plan.unfilled_page_ids.tolist()


def test_a_row_that_goes_on_in_its_page_clears_nothing() -> None:
    """Its keys are there."""
    tables = PageArrays(num_pages=9, page_tokens=PAGE_TOKENS)
    plan_pages(microbatch(entry(0, 2, 3)), tables)
    assert plan_pages(microbatch(entry(2, 1)), tables).unfilled_page_ids.tolist() == []


def test_a_copied_page_is_kept() -> None:
    """A fork's row begins inside a page that was copied for it; only what follows is empty."""
    tables = PageArrays(num_pages=9, page_tokens=PAGE_TOKENS)
    plan = plan_pages(microbatch(entry(6, 1, 3, 4, 8)), tables)
    assert plan.unfilled_page_ids.tolist() == [8]


def test_all_entries_count() -> None:
    """Decode rows begin pages too."""
    tables = PageArrays(num_pages=9, page_tokens=PAGE_TOKENS)
    plan = plan_pages(microbatch(entry(0, 1, 3), entry(4, 1, 2, 6, row=1)), tables)
    assert plan.unfilled_page_ids.tolist() == [3, 6]
