"""The order in which leaves go."""

from __future__ import annotations

from chunkmesh.indexed_page import IndexedPage
from chunkmesh.leaf_queue import LeafQueue, least_recently_used


def page(name: str, last_used: int) -> IndexedPage:
    """Return a page that was used then."""
    return IndexedPage(
        namespace=b"n",
        digest=name.encode(),
        parent=b"n",
        model_layers=1,
        page_index=0,
        priority=0,
        last_used=last_used,
    )


def queue_of(*pages: IndexedPage) -> LeafQueue:
    """Return a queue in which what is held may not go."""
    leaves = LeafQueue(least_recently_used, lambda page: not page.is_held)
    for one in pages:
        leaves.push(one)
    return leaves


def test_the_least_key_comes_first() -> None:
    """Each page once, however often it was pushed."""
    old, new = page("old", 1), page("new", 2)
    leaves = queue_of(new, old, new)
    assert [leaves.pop(), leaves.pop(), leaves.pop()] == [old, new, None]


def test_a_page_used_meanwhile_moves_back() -> None:
    """Nobody told the queue."""
    first, second = page("a", 1), page("b", 2)
    leaves = queue_of(first, second)
    first.last_used = 3
    assert [leaves.pop(), leaves.pop()] == [second, first]


def test_a_page_held_meanwhile_is_passed_over() -> None:
    """It is pushed again when nobody holds it."""
    first, second = page("a", 1), page("b", 2)
    leaves = queue_of(first, second)
    first.locks = 1
    assert [leaves.pop(), leaves.pop()] == [second, None]
    assert first not in leaves
    first.locks = 0
    leaves.push(first)
    assert leaves.pop() is first


def test_a_page_that_would_come_later_stays() -> None:
    """Another has the turn."""
    only = page("a", 5)
    leaves = queue_of(only)
    assert leaves.pop(before=(5,)) is None
    assert leaves.pop(before=(6,)) is only
