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
    load.num_read = 2
    assert staging.finish(load)
    taken = staging.take(1)
    assert taken is not None
    assert taken.ready.shape == (2, 2, 10)
    assert staging.take(1) is None
    assert staging.num_bytes == 0


def test_a_dropped_load_is_not_finished() -> None:
    """Its I/O thread comes late; the same id may be in use again."""
    staging = Staging(100)
    old = staging.begin(1, num_pages=1, num_layers=1, layer_bytes=10)
    staging.drop(1)
    new = staging.begin(1, num_pages=1, num_layers=1, layer_bytes=10)
    assert not staging.finish(old)
    assert not staging.wants(old)
    assert staging.take(1) is None
    assert staging.wants(new)
    assert staging.finish(new)


def test_a_load_without_pages_leaves_nothing() -> None:
    """Nobody commits or cancels it."""
    staging = Staging(100)
    load = staging.begin(1, num_pages=1, num_layers=1, layer_bytes=10)
    assert staging.finish(load)
    assert staging.num_bytes == 0
    assert staging.take(1) is None


def test_clear_frees_everything() -> None:
    """A new epoch begins with all its room."""
    staging = Staging(100)
    load = staging.begin(1, num_pages=1, num_layers=1, layer_bytes=10)
    staging.clear()
    assert staging.num_bytes == 0
    assert not staging.finish(load)


def test_an_ended_load_wants_no_more() -> None:
    """What its I/O thread reads afterwards belongs to nobody."""
    staging = Staging(100)
    load = staging.begin(1, num_pages=3, num_layers=1, layer_bytes=10)
    load.num_read = 1
    assert staging.wants(load)
    assert staging.finish(load)
    assert not staging.wants(load)
    load.num_read = 3
    assert not staging.finish(load)
    taken = staging.take(1)
    assert taken is not None
    assert len(taken.ready) == 1
