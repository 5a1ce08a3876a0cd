"""Memory of loaded pages."""

from __future__ import annotations

from stage_worker.staging import Staging


def test_a_load_gets_the_leading_pages_that_fit() -> None:
    """A load must never grow the worker's memory over its bound, nor wait for room."""
    staging = Staging(100)
    first = staging.begin(1, num_pages=3, num_layers=2, layer_bytes=10)
    second = staging.begin(2, num_pages=3, num_layers=2, layer_bytes=10)
    third = staging.begin(3, num_pages=3, num_layers=2, layer_bytes=10)
    assert [len(load.pages) for load in (first, second, third)] == [3, 2, 0]
    staging.drop(1)
    assert len(staging.begin(4, num_pages=9, num_layers=2, layer_bytes=10).pages) == 3


def test_pages_are_taken_once_and_their_room_is_free() -> None:
    """Leaked room would turn the cache off for the life of the worker."""
    staging = Staging(100)
    load = staging.begin(1, num_pages=3, num_layers=2, layer_bytes=10)
    assert staging.take(1) is None
    load.pages[:] = 7
    assert staging.finish(load, 2)
    pages = staging.take(1)
    assert pages is not None
    assert pages.shape == (2, 2, 10)
    assert staging.take(1) is None
    assert staging.num_bytes == 0


def test_a_dropped_load_is_not_finished() -> None:
    """Its I/O thread comes late; the same id may be in use again."""
    staging = Staging(100)
    old = staging.begin(1, num_pages=1, num_layers=1, layer_bytes=10)
    staging.drop(1)
    new = staging.begin(1, num_pages=1, num_layers=1, layer_bytes=10)
    assert not staging.finish(old, 1)
    assert not staging.holds(old)
    assert staging.take(1) is None
    assert staging.finish(new, 1)


def test_a_load_without_pages_leaves_nothing() -> None:
    """Nobody commits or cancels it."""
    staging = Staging(100)
    load = staging.begin(1, num_pages=1, num_layers=1, layer_bytes=10)
    assert staging.finish(load, 0)
    assert staging.num_bytes == 0
    assert staging.take(1) is None


def test_clear_frees_everything() -> None:
    """A new epoch begins with all its room."""
    staging = Staging(100)
    load = staging.begin(1, num_pages=1, num_layers=1, layer_bytes=10)
    staging.clear()
    assert staging.num_bytes == 0
    assert not staging.finish(load, 1)
