"""Page I/O of several stages over a real server: any split reads what any other stored."""

from __future__ import annotations

import contextlib
import pathlib
import queue
from collections.abc import Iterator

import numpy as np
import pytest

from chunkmesh.kv_store import KvStore
from chunkmesh.stored_page import page_key
from stage_worker.orders import StorePage
from stage_worker.page_io import PageIO
from stage_worker.page_jobs import LoadResult, StoreResult
from tests.eventually import eventually_blocking
from tests.page_samples import FORM, NAMESPACE, chain, layer_data, parents
from tests.scripted_stage import Script, ScriptedStage
from tests.valkey import Valkey, running_valkey

DIGESTS = chain(3)
PAGES = tuple(
    StorePage(namespace=NAMESPACE, digest=digest, parent=parent, page_index=index, page_id=index)
    for index, (digest, parent) in enumerate(zip(DIGESTS, parents(DIGESTS), strict=True))
)


@pytest.fixture
def server(tmp_path: pathlib.Path) -> Iterator[Valkey]:
    """Run an empty server."""
    with running_valkey(tmp_path) as valkey:
        yield valkey


def _reraise(error: BaseException) -> None:
    raise error


class IOStage:
    """The page I/O of one stage, and what it reported."""

    def __init__(self, server: Valkey, first: int, last: int) -> None:
        self.layers = range(first, last)
        self.stage = ScriptedStage(first, last, FORM.model_layers, Script())
        self.stage.allocate(num_pages=8, page_tokens=FORM.page_tokens)
        self.results: queue.Queue[LoadResult | StoreResult] = queue.Queue()
        stores = [KvStore(server.url), KvStore(server.url)]
        self.page_io = PageIO(
            stores, self.stage, self.layers, report=self.results.put, crashed=_reraise
        )
        self.page_io.join(FORM)

    def store(self) -> StoreResult:
        """Store all pages with their own bytes."""
        for page in PAGES:
            for layer in self.layers:
                self.stage.write_page(layer, page.page_id, layer_data(page.digest, layer))
        self.page_io.store(1, PAGES)
        result = self.results.get(timeout=60)
        assert isinstance(result, StoreResult)
        return result

    def load(self) -> LoadResult:
        """Load all pages."""
        self.page_io.load(2, DIGESTS)
        result = self.results.get(timeout=60)
        assert isinstance(result, LoadResult)
        return result


@contextlib.contextmanager
def stages(server: Valkey, *splits: tuple[int, int]) -> Iterator[list[IOStage]]:
    """Run the page I/O of some stages."""
    running = [IOStage(server, first, last) for first, last in splits]
    try:
        yield running
    finally:
        for stage in running:
            stage.page_io.close()


def test_three_stages_load_what_two_stored(server: Valkey) -> None:
    """A page belongs to no split."""
    with stages(server, (0, 2), (2, 4)) as writers:
        assert [writer.store().stored for writer in writers] == [(0, 1, 2)] * 2
    with stages(server, (0, 1), (1, 3), (3, 4)) as readers:
        for reader in readers:
            assert reader.load() == LoadResult(load_id=2, num_pages=3, bad_digests=())
            taken = reader.page_io.take(2)
            assert taken is not None
            for page, digest in zip(taken.ready, DIGESTS, strict=True):
                expected = np.stack([layer_data(digest, layer) for layer in reader.layers])
                assert expected.tobytes() == page.numpy().tobytes()


def test_only_the_stage_that_lacks_its_part_sees_the_hole(server: Valkey) -> None:
    """O18 (b): the scheduler takes the minimum, so the stages cannot differ in what they use."""
    with stages(server, (0, 2), (2, 4)) as (first, second):
        first.store()
        second.store()
        with server.client() as client:
            client.hdel(page_key(DIGESTS[1]), "2", "3")
        assert first.load().num_pages == 3
        assert second.load() == LoadResult(load_id=2, num_pages=1, bad_digests=(DIGESTS[1],))


def test_down_is_a_miss_and_up_needs_nobody(server: Valkey) -> None:
    """O20 (c): reconnected within five seconds; nothing is invalidated meanwhile."""
    with stages(server, (0, 4)) as (stage,):
        stage.store()
        server.stop()
        assert stage.load() == LoadResult(load_id=2, num_pages=0, bad_digests=())
        assert stage.store().stored == ()
        server.start()
        eventually_blocking(lambda: stage.store().stored == (0, 1, 2), within_s=5)
        assert stage.load().num_pages == 3
