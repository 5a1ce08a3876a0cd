"""Page I/O with host memory: loads that begin there, and copies that are made in turn."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import numpy as np
import pytest
from prometheus_client import REGISTRY

from stage_worker.host_pages import HostPages
from stage_worker.orders import StorePage
from stage_worker.page_io import PageIO
from stage_worker.page_jobs import LoadResult, PageIOLimits, StoreResult
from tests.page_samples import FORM, NAMESPACE, layer_data, parents
from tests.played_store import DIGESTS, LAYERS, PAGE_BYTES, PlayedStage, PlayedStore

Results = queue.Queue[LoadResult | StoreResult]


@pytest.fixture
def store() -> PlayedStore:
    """Return an empty store."""
    return PlayedStore()


@pytest.fixture
def stage() -> PlayedStage:
    """Return a pool."""
    return PlayedStage()


@pytest.fixture
def results() -> Results:
    """Return where results arrive."""
    return queue.Queue()


@pytest.fixture
def page_io(store: PlayedStore, stage: PlayedStage, results: Results) -> Iterator[PageIO]:
    """Run one I/O thread with room for three pages to store and eight in host memory."""
    limits = PageIOLimits(store_bytes=3 * PAGE_BYTES, host=HostPages(8 * PAGE_BYTES))
    page_io = PageIO([store], stage, LAYERS, report=results.put, crashed=_raise, limits=limits)
    page_io.join(FORM)
    yield page_io
    store.may_go.set()
    page_io.close()


def _raise(error: BaseException) -> None:
    raise error


def not_stored(reason: str) -> float:
    """Return the counter of pages that were not stored."""
    name = "chunkmesh_pages_not_stored_total"
    return REGISTRY.get_sample_value(name, {"reason": reason}) or 0.0


def pages(*page_ids: int) -> list[StorePage]:
    """Return orders to store pages."""
    return [
        StorePage(
            namespace=NAMESPACE,
            digest=DIGESTS[i],
            parent=parents(DIGESTS)[i],
            page_index=i,
            page_id=i,
        )
        for i in page_ids
    ]


def test_host_pages_lie_before_what_is_read(page_io: PageIO, results: Results) -> None:
    """They take no room, and their time is no time of Redis."""
    page_io.store(1, pages(0, 1, 2))
    results.get(timeout=60)
    page_io.host.expect(DIGESTS[:2], (4, 6))
    page_io.load(2, DIGESTS[:3], (4, 6))
    result = results.get(timeout=60)
    expected = LoadResult(load_id=2, num_pages=3, num_host_pages=2, bad_digests=())
    assert result == expected
    assert isinstance(result, LoadResult)
    assert result.num_bytes == PAGE_BYTES
    taken = page_io.take(2)
    assert taken is not None
    assert taken.host_ids == (4, 6)
    assert taken.ready[0][0].numpy().tobytes() == layer_data(DIGESTS[2], LAYERS[0]).tobytes()


def test_a_load_of_host_pages_alone_needs_no_store(
    page_io: PageIO, store: PlayedStore, results: Results
) -> None:
    """It ends at once, also while Redis is slow."""
    store.may_go.clear()
    page_io.host.expect(DIGESTS[:1], (3,))
    page_io.load(1, DIGESTS[:1], (3,))
    expected = LoadResult(load_id=1, num_pages=1, num_host_pages=1, bad_digests=())
    assert results.get(timeout=60) == expected
    assert store.num_calls == 0


def test_host_pages_that_are_something_else_are_read(page_io: PageIO, results: Results) -> None:
    """From the first such page on; Redis may have what host memory has lost."""
    page_io.store(1, pages(0, 1))
    results.get(timeout=60)
    page_io.host.expect((DIGESTS[0], DIGESTS[3]), (0, 1))
    page_io.load(2, DIGESTS[:2], (0, 1))
    expected = LoadResult(load_id=2, num_pages=2, num_host_pages=1, bad_digests=())
    assert results.get(timeout=60) == expected


def test_copies_in_turn_outlive_what_they_were_made_of(
    page_io: PageIO, stage: PlayedStage, store: PlayedStore, results: Results
) -> None:
    """Nothing pins evicted pages; the last of four found no room and is dropped."""
    before = not_stored("no room")
    copies = page_io.prepare(1, pages(0, 1, 2, 3), from_host=False)
    page_io.copy_out(copies)
    stage.read_page = lambda *_: np.zeros(1, dtype=np.uint8)  # type: ignore[method-assign]
    assert results.get(timeout=60) == StoreResult(store_id=1, stored=(0, 1, 2))
    assert not_stored("no room") - before == 1
    written = dict(store.pages[DIGESTS[1]].layers)
    assert bytes(written[LAYERS[0]])[-8:] == layer_data(DIGESTS[1], LAYERS[0]).tobytes()[-8:]


def test_copies_of_an_epoch_that_is_over_are_none(page_io: PageIO, results: Results) -> None:
    """Their ids come again in the next one."""
    copies = page_io.prepare(1, pages(0), from_host=False)
    page_io.join(FORM)
    page_io.copy_out(copies)
    page_io.store(1, pages(1, 2))
    assert results.get(timeout=60) == StoreResult(store_id=1, stored=(0, 1))
    assert results.empty()


def test_host_pages_are_stored_as_they_are(
    page_io: PageIO, store: PlayedStore, results: Results
) -> None:
    """What was evicted from host memory reaches Redis with its own bytes."""
    page_io.host.cut(LAYERS, FORM.layer_bytes)
    for index, layer in enumerate(LAYERS):
        page_io.host.page(2).numpy()[index] = layer_data(DIGESTS[2], layer)
    page_io.copy_out(page_io.prepare(1, pages(2), from_host=True))
    assert results.get(timeout=60) == StoreResult(store_id=1, stored=(0,))
    written = dict(store.pages[DIGESTS[2]].layers)
    for layer in LAYERS:
        assert bytes(written[layer])[16:] == layer_data(DIGESTS[2], layer).tobytes()


def test_what_a_redis_that_is_away_does_not_get_is_counted_as_that(
    page_io: PageIO, results: Results
) -> None:
    """More memory for stores would be of no help; nothing is copied in vain."""
    before = not_stored("no room"), not_stored("redis")
    page_io._access._away.begin("a test says so")
    page_io.copy_out(page_io.prepare(1, pages(0, 1), from_host=False))
    assert results.get(timeout=5) == StoreResult(store_id=1, stored=())
    assert (not_stored("no room"), not_stored("redis")) == (before[0], before[1] + 2)
