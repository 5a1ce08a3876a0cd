"""PageTable: what the stages are told of it, and what is given back."""

from __future__ import annotations

from scheduler.page_table import PageTable


def test_pages_are_named_once() -> None:
    """The stages' tables grow by exactly what they lack."""
    table = PageTable(page_ids=[4, 5, 6, 9])
    assert table.name(2) == (4, 5)
    assert table.name(2) == ()
    assert table.name(3) == (6,)
    assert table.num_named == 3


def test_what_is_dropped_is_held_no_more() -> None:
    """Pages that are given back twice would be handed to two outputs."""
    table = PageTable(page_ids=[4, 5], num_named=2, num_kept=1, host_ids=[7], generation=3)
    assert (table.drop(), table.drop()) == ([4, 5], [])
    assert (table.drop_host(), table.drop_host()) == ([7], [])
    assert table == PageTable(generation=3)
