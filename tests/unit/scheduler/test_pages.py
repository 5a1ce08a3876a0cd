"""PageAllocator: what is free, and how contiguous it is handed out."""

from __future__ import annotations

import pytest

from chunkmesh.errors import InvariantViolated
from scheduler.pages import PageAllocator


def test_pages_are_contiguous_where_possible() -> None:
    """Contiguous pages are views on the stage: a run that fits is used, from its start."""
    pages = PageAllocator(16)
    first, second, third = pages.allocate(6), pages.allocate(2), pages.allocate(4)
    pages.release(first)
    pages.release(third)
    assert pages.allocate(4) == (0, 1, 2, 3)
    assert second == (6, 7)
    assert pages.allocate(7) == (8, 9, 10, 11, 12, 13, 14)


def test_smallest_fitting_run_is_used() -> None:
    """Cutting into the longest run would leave nothing for a long prompt."""
    pages = PageAllocator(16)
    pages.allocate(2)
    hole = pages.allocate(3)
    pages.allocate(2)
    pages.release(hole)
    assert pages.allocate(3) == hole
    assert pages.allocate(9) == (7, 8, 9, 10, 11, 12, 13, 14, 15)


def test_longest_runs_are_joined_when_none_fits() -> None:
    """A scattered pool must still serve, ascending and with few breaks."""
    pages = PageAllocator(12)
    ids = pages.allocate(12)
    pages.release(ids[0:1])
    pages.release(ids[3:6])
    pages.release(ids[8:12])
    assert pages.allocate(6) == (3, 4, 8, 9, 10, 11)
    assert pages.allocate(2) == (0, 5)
    assert pages.num_free == 0
    pages.check_integrity()


def test_page_is_free_when_its_last_hold_goes() -> None:
    """A store reads pages after their request has ended."""
    pages = PageAllocator(4)
    ids = pages.allocate(3)
    pages.pin(ids[1:])
    pages.release(ids)
    assert pages.num_free == 2
    pages.release(ids[1:])
    assert pages.num_free == pages.num_pages == 4
    pages.check_integrity()


def test_misuse_is_refused() -> None:
    """A page freed twice would be given to two requests."""
    pages = PageAllocator(4)
    ids = pages.allocate(2)
    with pytest.raises(InvariantViolated, match="3 pages wanted, 2 are free"):
        pages.allocate(3)
    pages.release(ids)
    with pytest.raises(InvariantViolated, match="released"):
        pages.release(ids[:1])
    with pytest.raises(InvariantViolated, match="pinned"):
        pages.pin(ids[:1])
    pages.check_integrity()


def test_output_grows_in_place_where_it_can() -> None:
    """Stages read neighbouring pages as one view."""
    pages = PageAllocator(8)
    first = pages.allocate(2)
    assert pages.allocate_behind(first[-1]) == 2
    assert pages.num_free == 5


def test_output_grows_where_the_next_pages_can_follow() -> None:
    """Behind a neighbour, one page of its own in the midst of free ones serves for many."""
    pages = PageAllocator(12)
    first, _ = pages.allocate(2), pages.allocate(2)
    grown = pages.allocate_behind(first[-1])
    assert grown == 8
    assert [pages.allocate_behind(page_id) for page_id in (8, 9, 10)] == [9, 10, 11]
    assert pages.allocate_behind(11) == 6
    pages.check_integrity()


def test_no_page_to_grow_into() -> None:
    """The engine lets somebody leave before it asks."""
    pages = PageAllocator(2)
    pages.allocate(2)
    with pytest.raises(InvariantViolated, match="1 pages wanted, 0 are free"):
        pages.allocate_behind(1)
