"""Loads and stores against a store that the test plays."""

from __future__ import annotations

import dataclasses
import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
from prometheus_client import REGISTRY

from chunkmesh.errors import CacheFault
from chunkmesh.page_record import Bytes, PageRecord, decode_record
from chunkmesh.stored_page import PageRead
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
    """Run one I/O thread with room for three pages both ways."""
    limits = PageIOLimits(staging_bytes=3 * PAGE_BYTES, store_bytes=3 * PAGE_BYTES)
    page_io = PageIO([store], stage, LAYERS, report=results.put, crashed=_raise, limits=limits)
    page_io.join(FORM)
    yield page_io
    store.may_go.set()
    page_io.close()


def not_stored(reason: str) -> float:
    """Return the counter of pages that were not stored."""
    name = "chunkmesh_pages_not_stored_total"
    return REGISTRY.get_sample_value(name, {"reason": reason}) or 0.0


def _raise(error: BaseException) -> None:
    """Fail the test by its unhandled thread."""
    raise error


def pages(*page_ids: int) -> list[StorePage]:
    """Return orders to store pages of the pool."""
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


def test_what_was_stored_is_loaded(page_io: PageIO, results: Results) -> None:
    """The bytes that reach the pool are those that left it."""
    page_io.store(5, pages(0, 1))
    assert results.get(timeout=60) == StoreResult(store_id=5, stored=(0, 1))
    page_io.load(6, DIGESTS[:2])
    assert results.get(timeout=60) == LoadResult(load_id=6, num_pages=2, bad_digests=())
    taken = page_io.take(6)
    assert taken is not None
    for page, digest in enumerate(DIGESTS[:2]):
        for index, layer in enumerate(LAYERS):
            found = taken.ready[page][index].numpy()
            assert found.tobytes() == layer_data(digest, layer).tobytes()


def test_records_tell_of_each_page_what_it_is(
    page_io: PageIO, store: PlayedStore, results: Results
) -> None:
    """After a restart hicache-server knows tenants' pages apart from records alone."""
    plain, salted = pages(0, 1)
    salted = dataclasses.replace(salted, namespace=bytes(32))
    page_io.store(1, [plain, salted])
    results.get(timeout=60)
    records = [
        decode_record(page.digest, store.pages[page.digest].record) for page in (plain, salted)
    ]
    assert records == [
        PageRecord(format=FORM, namespace=NAMESPACE, parent=NAMESPACE, page_index=0),
        PageRecord(format=FORM, namespace=bytes(32), parent=DIGESTS[0], page_index=1),
    ]


def test_a_load_ends_at_the_hole_and_names_it(page_io: PageIO, results: Results) -> None:
    """O18: pages behind a hole never move up; the hole is to be invalidated."""
    page_io.store(1, pages(0, 2))
    results.get(timeout=60)
    page_io.load(2, DIGESTS[:3])
    expected = LoadResult(load_id=2, num_pages=1, bad_digests=(DIGESTS[1],))
    assert results.get(timeout=60) == expected


def test_a_load_is_cut_to_the_room(page_io: PageIO, results: Results) -> None:
    """Three pages fit; the fourth is not bad, only not loaded."""
    for store_id, page_ids in enumerate(((0, 1), (2, 3))):
        page_io.store(store_id, pages(*page_ids))
        results.get(timeout=60)
    page_io.load(2, DIGESTS)
    assert results.get(timeout=60) == LoadResult(load_id=2, num_pages=3, bad_digests=())


def test_a_fault_is_no_page_and_no_bad_one(
    page_io: PageIO, store: PlayedStore, results: Results
) -> None:
    """Invalidating pages because Redis was away would empty the cache at every hiccup."""
    before = not_stored("redis")
    store.fault = CacheFault("away")
    page_io.load(1, DIGESTS[:2])
    assert results.get(timeout=60) == LoadResult(load_id=1, num_pages=0, bad_digests=())
    page_io.load(2, DIGESTS[:2])
    page_io.store(3, pages(0))
    assert results.get(timeout=60) == LoadResult(load_id=2, num_pages=0, bad_digests=())
    assert results.get(timeout=60) == StoreResult(store_id=3, stored=())
    assert store.num_calls == 1, "no retry storm"
    assert not_stored("redis") == before + 1


def test_a_full_server_still_gives_pages(
    page_io: PageIO, store: PlayedStore, results: Results
) -> None:
    """O20 (a): refused writes rest, loads go on."""
    page_io.store(1, pages(0))
    results.get(timeout=60)
    store.full = True
    page_io.store(2, pages(1))
    page_io.store(3, pages(2))
    assert [results.get(timeout=60), results.get(timeout=60)] == [
        StoreResult(store_id=2, stored=()),
        StoreResult(store_id=3, stored=()),
    ]
    assert store.num_calls == 2
    page_io.load(4, DIGESTS[:1])
    assert results.get(timeout=60) == LoadResult(load_id=4, num_pages=1, bad_digests=())


def test_stores_over_the_limit_are_dropped_not_waited_for(
    page_io: PageIO, store: PlayedStore, results: Results
) -> None:
    """A slow Redis costs cached pages, never compute time or memory."""
    before = not_stored("no room")
    store.may_go.clear()
    page_io.store(1, pages(0, 1))
    page_io.store(2, pages(2, 3))
    page_io.store(3, pages(2))
    assert not_stored("no room") == before + 2
    store.may_go.set()
    ends = {results.get(timeout=60) for _ in range(3)}
    assert ends == {
        StoreResult(store_id=1, stored=(0, 1)),
        StoreResult(store_id=2, stored=()),
        StoreResult(store_id=3, stored=(0,)),
    }
    page_io.store(4, pages(1, 2, 3))
    assert results.get(timeout=60) == StoreResult(store_id=4, stored=(0, 1, 2))


def test_a_cancelled_load_is_silent_and_frees_its_room(
    page_io: PageIO, store: PlayedStore, results: Results
) -> None:
    """Room leaked by aborted requests ended caching for good elsewhere."""
    page_io.store(1, pages(0, 1, 2))
    results.get(timeout=60)
    store.may_go.clear()
    store.entered.clear()
    page_io.load(2, DIGESTS[:3])
    assert store.entered.wait(5)
    page_io.cancel(2)
    page_io.load(3, DIGESTS[:3])
    store.may_go.set()
    assert results.get(timeout=60) == LoadResult(load_id=3, num_pages=3, bad_digests=())
    assert page_io.take(2) is None
    assert results.empty()


def test_an_ended_load_gives_what_was_read(
    page_io: PageIO, store: PlayedStore, results: Results, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At a deadline the front is worth having; what is read later is nobody's."""
    monkeypatch.setattr("stage_worker.page_jobs._FIRST_GROUP_BYTES", PAGE_BYTES)
    page_io.store(1, pages(0, 1, 2))
    results.get(timeout=60)
    in_second_group = threading.Event()
    read_pages = store.read_pages

    def read_in_turn(digests: Sequence[bytes], *args: Any) -> tuple[PageRead, ...]:
        if digests[0] != DIGESTS[0]:
            in_second_group.set()
            store.may_go.clear()
        return read_pages(digests, *args)

    monkeypatch.setattr(store, "read_pages", read_in_turn)
    page_io.load(2, DIGESTS[:3])
    assert in_second_group.wait(5)
    page_io.end(2)
    result = results.get(timeout=60)
    assert result == LoadResult(load_id=2, num_pages=1, bad_digests=())
    assert isinstance(result, LoadResult)
    assert result.num_bytes == PAGE_BYTES
    assert result.took_us > 0
    page_io.end(2)
    store.may_go.set()
    taken = page_io.take(2)
    assert taken is not None
    (page,) = taken.ready
    assert page[0].numpy().tobytes() == layer_data(DIGESTS[0], LAYERS[0]).tobytes()
    page_io.load(3, DIGESTS[:1])
    assert results.get(timeout=60) == LoadResult(load_id=3, num_pages=1, bad_digests=())


def test_a_load_that_waits_for_its_thread_can_be_ended(
    page_io: PageIO, store: PlayedStore, results: Results
) -> None:
    """Redis hangs: the request behind must not hang with it."""
    store.may_go.clear()
    page_io.load(1, DIGESTS[:1])
    assert store.entered.wait(5)
    page_io.load(2, DIGESTS[:1])
    page_io.end(2)
    assert results.get(timeout=60) == LoadResult(load_id=2, num_pages=0, bad_digests=())
    page_io.end(1)
    assert results.get(timeout=60) == LoadResult(load_id=1, num_pages=0, bad_digests=())
    page_io.end(7)
    store.may_go.set()
    page_io.store(3, pages(0))
    assert results.get(timeout=60) == StoreResult(store_id=3, stored=(0,))


def test_a_new_epoch_forgets_what_ran(
    page_io: PageIO, store: PlayedStore, results: Results
) -> None:
    """Results of before must not be taken for those of now."""
    page_io.store(1, pages(0))
    results.get(timeout=60)
    store.may_go.clear()
    store.entered.clear()
    page_io.load(1, DIGESTS[:1])
    page_io.store(2, pages(1))
    page_io.store(3, pages(2))
    assert store.entered.wait(5)
    page_io.join(FORM)
    store.may_go.set()
    page_io.store(1, pages(0, 1, 2))
    assert results.get(timeout=60) == StoreResult(store_id=1, stored=(0, 1, 2))
    assert page_io.take(1) is None


def test_a_new_epoch_waits_for_the_page_being_copied(
    page_io: PageIO, store: PlayedStore, stage: PlayedStage, results: Results
) -> None:
    """Afterwards the pool is written anew: a copy could mix two prompts under one digest."""
    reading, may_end = threading.Event(), threading.Event()

    def pause() -> None:
        reading.set()
        assert may_end.wait(5)

    stage.on_read = pause
    page_io.store(1, pages(0, 1))
    assert reading.wait(5)
    joining = threading.Thread(target=page_io.join, args=(FORM,))
    joining.start()
    joining.join(0.05)
    assert joining.is_alive()
    may_end.set()
    joining.join(5)
    page_io.load(2, DIGESTS[:1])
    expected = LoadResult(load_id=2, num_pages=0, bad_digests=(DIGESTS[0],))
    assert results.get(timeout=60) == expected
    assert store.pages == {}


def test_without_redis_everything_is_a_miss(stage: PlayedStage, results: Results) -> None:
    """A mesh without a cache is a mesh."""
    page_io = PageIO([], stage, LAYERS, report=results.put, crashed=_raise)
    page_io.join(FORM)
    page_io.load(1, DIGESTS)
    page_io.store(2, pages(0))
    assert results.get(timeout=60) == LoadResult(load_id=1, num_pages=0, bad_digests=())
    assert results.get(timeout=60) == StoreResult(store_id=2, stored=())
    page_io.close()


def test_close_ends_threads_and_connections(stage: PlayedStage, results: Results) -> None:
    """Nothing is left running, ever."""
    before = threading.active_count()
    stores = [PlayedStore(), PlayedStore()]
    page_io = PageIO(stores, stage, LAYERS, report=results.put, crashed=_raise)
    assert threading.active_count() == before + 2
    page_io.close()
    assert threading.active_count() == before
    assert [store.closed for store in stores] == [True, True]


def test_a_bug_on_an_io_thread_is_told(store: PlayedStore, results: Results) -> None:
    """A thread that ended in silence would leave pages pinned for ever."""

    class BrokenStage(PlayedStage):
        def read_page(self, layer: int, page_id: int) -> Bytes:
            raise KeyError(layer, page_id)

    told: queue.Queue[BaseException] = queue.Queue()
    page_io = PageIO([store], BrokenStage(), LAYERS, report=results.put, crashed=told.put)
    page_io.join(FORM)
    page_io.store(1, pages(0))
    assert isinstance(told.get(timeout=60), KeyError)
    page_io.close()
    assert store.closed
    assert results.empty()


@pytest.mark.parametrize(
    "begin", [lambda io: io.load(0, DIGESTS[:1]), lambda io: io.store(0, [])], ids=["load", "store"]
)
def test_join_returns_only_behind_a_report_under_way(begin: Callable[[PageIO], None]) -> None:
    """Ids begin anew in each epoch: an old end told late would free the pages of a new store."""
    reporting, may_go = threading.Event(), threading.Event()
    reported: list[LoadResult | StoreResult] = []
    crashes: list[BaseException] = []

    def report(result: LoadResult | StoreResult) -> None:
        reporting.set()
        assert may_go.wait(5)
        reported.append(result)

    page_io = PageIO([], PlayedStage(), LAYERS, report=report, crashed=crashes.append)
    page_io.join(FORM)
    begin(page_io)
    assert reporting.wait(5)
    joining = threading.Thread(target=page_io.join, args=(FORM,))
    joining.start()
    joining.join(0.1)
    returned_early = not joining.is_alive()
    may_go.set()
    joining.join(5)
    page_io.close()
    assert (returned_early, len(reported), crashes) == (False, 1, [])
