"""Loads pages from Redis into staging and stores pages of the pool, in a few I/O threads.

The compute thread never waits for Redis: load and store only queue work, take hands over what was
loaded. Memory is bounded both ways: a load gets as many leading pages as staging has room for, a
store over the limit is dropped. Redis being away makes loads of 0 pages and stores of none.
Results are reported from I/O threads.
"""

from __future__ import annotations

import collections
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence

import numpy as np
from prometheus_client import Counter

from chunkmesh.errors import CacheFault
from chunkmesh.page_record import Bytes, EncodedPage, PageFormat, PageRecord, encode_page
from chunkmesh.stored_page import PageRead
from stage_worker.host_pages import HostPages
from stage_worker.orders import StorePage
from stage_worker.page_store import PageReader, PageStore
from stage_worker.pause import Pause
from stage_worker.staging import StagedLoad, Staging

_GROUP_BYTES = 16 << 20
"""About what is read or written between two looks at whether it is still wanted."""
_FIRST_GROUP_BYTES = 1 << 20
"""Of a load; each group has twice as much as the one before. So a load that has to end early has
something, and a long one still reads in large pieces."""

_NOT_STORED = Counter(
    "chunkmesh_pages_not_stored", "Full pages that were to be stored and were not.", ["reason"]
)
_NOT_LOADED = Counter(
    "chunkmesh_pages_not_loaded",
    "Cached pages that were to be loaded and were not, by what ended their load.",
    ["reason"],
)
_DROPPED_PAGES = _NOT_STORED.labels(reason="no room")
"""For lack of room in the queue."""
_REFUSED_PAGES = _NOT_STORED.labels(reason="redis")
"""Redis did not take them, or they were not tried because it was away or their epoch was over."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadResult:
    """A load ended."""

    load_id: int
    num_pages: int
    """Leading pages that wait for take; with 0 the load is forgotten already."""
    num_host_pages: int = 0
    """Of those, how many are in host memory."""
    bad_digests: tuple[bytes, ...]
    """Pages found missing or damaged; empty if Redis did not answer."""
    num_bytes: int = dataclasses.field(default=0, compare=False)
    """Of those pages that are not."""
    took_us: int = dataclasses.field(default=0, compare=False)
    """Since load was called."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StoreResult:
    """A store ended; its pages need no pin any more."""

    store_id: int
    stored: tuple[int, ...]
    """Indices of the pages that are in Redis for this stage's layers."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageIOLimits:
    """Bounds on memory."""

    staging_bytes: int = 1 << 30
    """Of loads that were neither taken nor cancelled."""
    store_bytes: int = 256 << 20
    """Of pages that stores under way hold."""
    host: HostPages = dataclasses.field(default_factory=lambda: HostPages(0))
    """Memory for host pages."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Load:
    form: PageFormat
    digests: tuple[bytes, ...]
    """Of the pages to read; host pages lie before them."""
    staged: StagedLoad
    begun_s: float

    def result(self, bad_digests: tuple[bytes, ...], why_not_all: str) -> LoadResult:
        """Return what is told of a finished load, and count what it lacks."""
        num_pages = self.staged.num_pages or 0
        if num_pages < len(self.digests):
            _NOT_LOADED.labels(reason=why_not_all).inc(len(self.digests) - num_pages)
        return LoadResult(
            load_id=self.staged.load_id,
            num_pages=len(self.staged.host_ids) + num_pages,
            num_host_pages=len(self.staged.host_ids),
            bad_digests=bad_digests,
            num_bytes=self.staged.ready.nbytes,
            took_us=round(1e6 * (time.monotonic() - self.begun_s)),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageCopies:
    """Pages of the pool or of host memory that are to be copied in turn, and stored."""

    epoch: int
    form: PageFormat
    store_id: int
    pages: tuple[StorePage, ...]
    from_host: bool


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Store:
    epoch: int
    form: PageFormat
    store_id: int
    pages: tuple[StorePage, ...]
    """Empty if the store was dropped."""
    num_bytes: int
    copies: tuple[EncodedPage, ...] | None = None
    """Of the pages, if they were made in turn."""


class PageIO:
    """Owner of the I/O threads of one stage.

    Its methods are for one thread. report is called on I/O threads, must not block and must not
    call back. Once join has returned, nothing of an earlier epoch is reported: its ids come again.
    crashed hears, on an I/O thread, of a bug that ended it.
    """

    def __init__(
        self,
        stores: Sequence[PageStore],
        stage: PageReader,
        layers: range,
        *,
        report: Callable[[LoadResult | StoreResult], None],
        crashed: Callable[[BaseException], None],
        limits: PageIOLimits | None = None,
    ) -> None:
        """Start one thread a store, which it owns; without stores nothing is ever cached."""
        limits = limits or PageIOLimits()
        self.host = limits.host
        """Perhaps of no pages."""
        self._stage = stage
        self._layers = layers
        self._report = report
        self._crashed = crashed
        self._form: PageFormat | None = None
        self._epoch = 0
        self._staging = Staging(limits.staging_bytes)
        self._store_bytes = 0
        self._max_store_bytes = limits.store_bytes
        self._loads: collections.deque[_Load] = collections.deque()
        """Those that no thread has begun."""
        self._running: dict[int, _Load] = {}
        """Loads that have not ended, by id."""
        self._stores: collections.deque[_Store] = collections.deque()
        self._closed = False
        self._away = Pause("prefix cache away")
        self._full = Pause("prefix cache refuses pages")
        self._num_copying = 0
        """Pages that I/O threads are copying out of the pool now."""
        lock = threading.Lock()
        self._changed = threading.Condition(lock)
        self._copied = threading.Condition(lock)
        self._threads = [
            threading.Thread(target=self._work, args=(store,), name=f"page-io-{index}", daemon=True)
            for index, store in enumerate(stores or (None,))
        ]
        for thread in self._threads:
            thread.start()

    def join(self, form: PageFormat) -> None:
        """Begin an epoch whose pages have this format; forget all loads and stores before it.

        Blocks for the copy of a page or two: when it returns no I/O thread reads the pool, whose
        pages may then be written anew.
        """
        self.host.begin_epoch(form.page_tokens)
        with self._changed:
            self._epoch += 1
            self._form = form
            self._loads.clear()
            self._running.clear()
            self._store_bytes -= sum(job.num_bytes for job in self._stores)
            self._stores.clear()
            self._staging.clear()
            self._copied.wait_for(lambda: self._num_copying == 0)

    def load(self, load_id: int, digests: Sequence[bytes], host_ids: Sequence[int] = ()) -> None:
        """Begin to read this stage's layers of consecutive pages; report tells the end.

        The first of them lie in host memory already, at host_ids; those that do not are read.
        """
        assert self._form is not None
        num_host = self.host.count(digests, host_ids)
        digests = digests[num_host:]
        staged = self._staging.begin(
            load_id,
            host_ids=tuple(host_ids[:num_host]),
            num_pages=len(digests),
            num_layers=len(self._layers),
            layer_bytes=self._form.layer_bytes,
        )
        job = _Load(
            form=self._form, digests=tuple(digests), staged=staged, begun_s=time.monotonic()
        )
        with self._changed:
            self._running[load_id] = job
            if not digests:
                self._end(job, (), "")
                return
            self._loads.append(job)
            self._changed.notify()

    def end(self, load_id: int) -> None:
        """End a load with what was read by now, which is reported at once; nothing if it has ended.

        What a thread still reads of it is thrown away.
        """
        with self._changed:
            job = self._running.get(load_id)
            if job is not None:
                self._end(job, (), "late")

    def take(self, load_id: int) -> StagedLoad | None:
        """Return a load with its pages, now the caller's; forget the load.

        None if no such load has ended with pages.
        """
        return self._staging.take(load_id)

    def cancel(self, load_id: int) -> None:
        """Forget a load; it is not reported any more."""
        self._running.pop(load_id, None)
        self._staging.drop(load_id)

    def store(self, store_id: int, pages: Sequence[StorePage]) -> None:
        """Begin to write pages of the pool, pinned until report tells the end."""
        assert self._form is not None
        num_bytes = len(pages) * len(self._layers) * self._form.layer_bytes
        with self._changed:
            if self._store_bytes + num_bytes > self._max_store_bytes:
                _DROPPED_PAGES.inc(len(pages))
                pages, num_bytes = (), 0
            self._store_bytes += num_bytes
            self._stores.append(
                _Store(
                    epoch=self._epoch,
                    form=self._form,
                    store_id=store_id,
                    pages=tuple(pages),
                    num_bytes=num_bytes,
                )
            )
            self._changed.notify()

    def prepare(self, store_id: int, pages: Sequence[StorePage], *, from_host: bool) -> PageCopies:
        """Return what copy_out has to be given in turn; nothing pins the pages until then."""
        assert self._form is not None
        return PageCopies(
            epoch=self._epoch,
            form=self._form,
            store_id=store_id,
            pages=tuple(pages),
            from_host=from_host,
        )

    def copy_out(self, wanted: PageCopies) -> None:
        """Copy pages and begin to write them, as many as there is room for; compute thread only."""
        page_bytes = len(self._layers) * wanted.form.layer_bytes
        with self._changed:
            if wanted.epoch != self._epoch:
                return
            num_room = (self._max_store_bytes - self._store_bytes) // page_bytes
            pages = wanted.pages[:num_room]
            num_bytes = len(pages) * page_bytes
            self._store_bytes += num_bytes
        _DROPPED_PAGES.inc(len(wanted.pages) - len(pages))
        copies = tuple(self._encode(page, wanted) for page in pages)
        with self._changed:
            if wanted.epoch != self._epoch:
                self._store_bytes -= num_bytes
                return
            self._stores.append(
                _Store(
                    epoch=wanted.epoch,
                    form=wanted.form,
                    store_id=wanted.store_id,
                    pages=pages,
                    num_bytes=num_bytes,
                    copies=copies,
                )
            )
            self._changed.notify()

    def close(self) -> None:
        """End the threads; waits for running commands, which Redis's timeout bounds."""
        with self._changed:
            self._closed = True
            self._epoch += 1
            self._staging.clear()
            self._changed.notify_all()
        for thread in self._threads:
            thread.join()

    def _work(self, store: PageStore | None) -> None:
        try:
            while (job := self._next_job()) is not None:
                if isinstance(job, _Load):
                    self._run_load(job, store)
                else:
                    self._run_store(job, store)
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: handed on, not kept
            self._crashed(error)
        finally:
            if store is not None:
                store.close()

    def _next_job(self) -> _Load | _Store | None:
        with self._changed:
            while not (self._closed or self._loads or self._stores):
                self._changed.wait()
            if self._closed:
                return None
            return self._loads.popleft() if self._loads else self._stores.popleft()

    def _run_load(self, job: _Load, store: PageStore | None) -> None:
        room = job.staged.pages
        bad: tuple[bytes, ...] = ()
        reason = "no room"
        for group in _growing_groups(len(room), room[0].nbytes if len(room) else 1):
            if not self._staging.wants(job.staged):
                return
            digests = job.digests[group]
            reads = self._read(job, digests, room[group], store)
            num_good = next((i for i, read in enumerate(reads) if read != "ok"), len(reads))
            job.staged.num_read += num_good
            bad = tuple(
                digest for digest, read in zip(digests, reads, strict=False) if read != "ok"
            )
            if num_good < len(digests):
                reason = reads[num_good] if reads else "redis"
                break
        with self._changed:
            self._end(job, bad, reason)

    def _end(self, job: _Load, bad_digests: tuple[bytes, ...], reason: str) -> None:
        """Report a load with the pages that were read, unless it was reported or forgotten."""
        if not self._staging.finish(job.staged):
            return
        self._running.pop(job.staged.load_id, None)
        self._report(job.result(bad_digests, reason))

    def _read(
        self, job: _Load, digests: Sequence[bytes], into: Bytes, store: PageStore | None
    ) -> tuple[PageRead, ...]:
        if store is None or self._away.active:
            return ()
        try:
            return store.read_pages(digests, job.form, self._layers.start, into)
        except CacheFault as error:
            self._away.begin(str(error))
            return ()

    def _run_store(self, job: _Store, store: PageStore | None) -> None:
        stored: list[int] = []
        for group in self._groups(len(job.pages), job.form):
            if store is None or self._away.active or self._full.active:
                break
            pages = self._copies(group, job)
            if pages is None:
                break
            written = self._write(pages, store)
            stored.extend(group.start + i for i, there in enumerate(written) if there)
        if store is not None:
            _REFUSED_PAGES.inc(len(job.pages) - len(stored))
        with self._changed:
            self._store_bytes -= job.num_bytes
            if job.epoch == self._epoch:
                self._report(StoreResult(store_id=job.store_id, stored=tuple(stored)))

    def _write(self, pages: Sequence[EncodedPage], store: PageStore) -> tuple[bool, ...]:
        try:
            written = store.write_pages(pages)
        except CacheFault as error:
            self._away.begin(str(error))
            return ()
        if not all(written):
            self._full.begin("the server may be out of memory")
        return written

    def _copies(self, group: slice, job: _Store) -> Sequence[EncodedPage] | None:
        """Return copies of pages; None if their epoch is over before they are all made."""
        if job.copies is not None:
            return job.copies[group] if job.epoch == self._epoch else None
        copies = [self._copy(page, job) for page in job.pages[group]]
        pages = [page for page in copies if page is not None]
        return pages if len(pages) == len(copies) else None

    def _copy(self, page: StorePage, job: _Store) -> EncodedPage | None:
        """Copy a page out of the pool; None if its epoch is over."""
        with self._changed:
            if job.epoch != self._epoch:
                return None
            self._num_copying += 1
        try:
            return self._encode(page, job)
        finally:
            with self._changed:
                self._num_copying -= 1
                self._copied.notify_all()

    def _encode(self, page: StorePage, job: PageCopies | _Store) -> EncodedPage:
        """Copy a page with what Redis is to know of it."""
        record = PageRecord(
            format=job.form,
            namespace=page.namespace,
            parent=page.parent,
            page_index=page.page_index,
        )
        data: Iterable[Bytes]
        if isinstance(job, PageCopies) and job.from_host:
            data = self.host.read(page.page_id)
        else:
            data = (np.ravel(self._stage.read_page(layer, page.page_id)) for layer in self._layers)
        return encode_page(page.digest, record, zip(self._layers, data, strict=True))

    def _groups(self, num_pages: int, form: PageFormat) -> Iterator[slice]:
        step = max(1, _GROUP_BYTES // (len(self._layers) * form.layer_bytes))
        for start in range(0, num_pages, step):
            yield slice(start, min(start + step, num_pages))


def _growing_groups(num_pages: int, page_bytes: int) -> Iterator[slice]:
    """Cut pages into groups, each of about twice the bytes of the one before, up to a limit."""
    start, group_bytes = 0, _FIRST_GROUP_BYTES
    while start < num_pages:
        end = min(num_pages, start + max(1, group_bytes // page_bytes))
        yield slice(start, end)
        start, group_bytes = end, min(2 * group_bytes, _GROUP_BYTES)
