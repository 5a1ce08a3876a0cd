"""Pages that are gone from the index and not yet from Redis."""

from __future__ import annotations

from chunkmesh.indexed_page import IndexedPage
from hicache.doomed import ELSEWHERE_S, WAIT_S, Doomed


def page(name: bytes) -> IndexedPage:
    """Return a page that has left the index."""
    return IndexedPage(
        namespace=b"n", digest=name, parent=b"n", model_layers=1, page_index=0, priority=0
    )


def test_broken_pages_are_due_at_once_and_victims_later() -> None:
    """Nobody can use a broken page; a victim may be in use."""
    doomed = Doomed()
    doomed.add_evicted([page(b"victim")], now_s=0)
    doomed.add_broken([page(b"broken")])
    assert doomed.due(9, WAIT_S - 0.1) == (b"broken",)
    assert doomed.due(9, WAIT_S) == (b"broken", b"victim")
    assert doomed.due(1, WAIT_S) == (b"broken",)


def test_a_locked_victim_does_not_hold_up_others() -> None:
    """It waits for its lease by itself."""
    held, free = page(b"held"), page(b"free")
    held.locks = 1
    doomed = Doomed()
    doomed.add_evicted([held, free], now_s=0)
    assert doomed.due(1, WAIT_S) == (b"free",)
    held.locks = 0
    assert doomed.due(1, WAIT_S) == (b"held",)


def test_a_page_is_doomed_until_it_is_unlinked() -> None:
    """Whoever unlinks it."""
    doomed = Doomed()
    doomed.add_broken([page(b"broken")])
    doomed.add_evicted([page(b"victim")], now_s=0)
    doomed.add_elsewhere([page(b"elsewhere")], now_s=0)
    names = (b"broken", b"victim", b"elsewhere")
    assert all(name in doomed for name in names)
    assert b"elsewhere" not in doomed.due(9, 1000)
    doomed.remove(names)
    assert not any(name in doomed for name in names)


def test_another_replica_is_not_waited_for_without_end() -> None:
    """It may have died before it unlinked the page, which then lives."""
    doomed = Doomed()
    doomed.add_elsewhere([page(b"early")], now_s=0)
    doomed.add_elsewhere([page(b"late")], now_s=1)
    doomed.expire(ELSEWHERE_S)
    assert (b"early" in doomed, b"late" in doomed) == (False, True)
