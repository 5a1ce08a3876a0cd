"""Memory of loaded pages."""

from __future__ import annotations

import pytest
import torch

from stage_worker import staging as staging_module
from stage_worker.staging import Staging


def test_a_load_gets_the_leading_pages_that_fit() -> None:
    """A load must never grow the worker's memory over its bound, nor wait for room."""
    staging = Staging(100)
    first = staging.begin(1, num_pages=3, num_layers=2, layer_bytes=10)
    second = staging.begin(2, num_pages=3, num_layers=2, layer_bytes=10)
    third = staging.begin(3, num_pages=3, num_layers=2, layer_bytes=10)
    assert [load.num_room for load in (first, second, third)] == [3, 2, 0]
    staging.drop(1)
    assert staging.begin(4, num_pages=9, num_layers=2, layer_bytes=10).num_room == 3


def test_pages_are_taken_once_and_their_room_is_free() -> None:
    """Leaked room would turn the cache off for the life of the worker."""
    staging = Staging(100)
    load = staging.begin(1, num_pages=3, num_layers=2, layer_bytes=10)
    assert staging.take(1) is None
    load.add(0, load.room(slice(0, 2)))
    assert staging.finish(load)
    taken = staging.take(1)
    assert taken is not None
    assert [page.shape for page in taken.ready] == [(2, 10)] * 2
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
    load.add(0, load.room(slice(0, 1)))
    assert staging.wants(load)
    assert staging.finish(load)
    assert not staging.wants(load)
    load.add(1, load.room(slice(1, 3)))
    assert not staging.finish(load)
    taken = staging.take(1)
    assert taken is not None
    assert len(taken.ready) == 1


def test_groups_that_come_out_of_turn_count_once_the_front_is_there() -> None:
    """Threads read side by side; a hit is what has no hole."""
    staging = Staging(100)
    load = staging.begin(1, num_pages=4, num_layers=1, layer_bytes=10)
    load.add(2, load.room(slice(2, 3)))
    assert load.num_read == 0
    load.add(0, load.room(slice(0, 2)))
    assert load.num_read == 3
    assert staging.finish(load)
    assert [len(page) for page in load.ready] == [1, 1, 1]


def test_pages_lie_apart_in_slabs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each page has memory of its own, also behind the end of a slab and in a short last one."""
    monkeypatch.setattr(staging_module, "SLAB_BYTES", 25)
    load = Staging(100).begin(1, num_pages=5, num_layers=1, layer_bytes=10)
    for begin, end in ((4, 5), (0, 1), (2, 4), (1, 2)):
        room = load.room(slice(begin, end))
        room[:, 0] = torch.arange(begin, end, dtype=torch.uint8)[:, None]
        load.add(begin, room)
    load.num_pages = 5
    assert [set(page.ravel().tolist()) for page in load.ready] == [{0}, {1}, {2}, {3}, {4}]
