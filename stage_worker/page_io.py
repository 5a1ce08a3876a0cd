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
from collections.abc import Callable, Sequence

from chunkmesh.page_record import EncodedPage, PageFormat, PageMemory
from stage_worker import metrics
from stage_worker.orders import StorePage
from stage_worker.page_jobs import (
    LoadJob,
    LoadPart,
    LoadQueue,
    LoadResult,
    PageIOLimits,
    StoreJob,
    StoreResult,
    encoded,
    equal_groups,
)
from stage_worker.page_store import PageReader, PageStore
from stage_worker.staging import StagedLoad, Staging
from stage_worker.store_access import StoreAccess

_DROPPED_PAGES = metrics.NOT_STORED_PAGES.labels(reason="no room")
_REFUSED_PAGES = metrics.NOT_STORED_PAGES.labels(reason="redis")


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
        self._staging = Staging(limits.staging_bytes, pinned=limits.pinned)
        self._store_bytes, self._max_store_bytes = 0, limits.store_bytes
        self._loads = LoadQueue()
        self._stores: collections.deque[StoreJob] = collections.deque()
        self._closed = False
        self._access = StoreAccess(layers.start, is_there=bool(stores))
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
        job = LoadJob(form=self._form, digests=tuple(digests), staged=staged)
        with self._changed:
            self._loads.add(job)
            if job.is_read:
                self._end(job)
            else:
                self._changed.notify_all()

    def end(self, load_id: int) -> None:
        """End a load with what was read by now, which is reported at once; nothing if it has ended.

        What a thread still reads of it is thrown away.
        """
        with self._changed:
            job = self._loads.find(load_id)
            if job is not None:
                self._end(job, "late")

    def take(self, load_id: int) -> StagedLoad | None:
        """Return a load that has ended with pages, now the caller's, or None; forget it."""
        return self._staging.take(load_id)

    def cancel(self, load_id: int) -> None:
        """Forget a load; it is not reported any more."""
        with self._changed:
            self._loads.drop(load_id)
            self._staging.drop(load_id)

    def store(self, store_id: int, pages: Sequence[StorePage]) -> None:
        """Begin to write pages of the pool, pinned until report tells the end."""
        job = self.prepare(store_id, pages, from_host=False)
        num_bytes = len(pages) * job.page_bytes
        with self._changed:
            if self._store_bytes + num_bytes > self._max_store_bytes:
                _DROPPED_PAGES.inc(len(pages))
                job, num_bytes = dataclasses.replace(job, pages=()), 0
            self._store_bytes += num_bytes
            self._stores.append(dataclasses.replace(job, num_bytes=num_bytes))
            self._changed.notify()

    def prepare(self, store_id: int, pages: Sequence[StorePage], *, from_host: bool) -> StoreJob:
        """Return what copy_out has to be given in turn; nothing pins the pages until then."""
        assert self._form is not None
        return StoreJob(
            epoch=self._epoch,
            form=self._form,
            store_id=store_id,
            pages=tuple(pages),
            source=self.host if from_host else self._stage,
            page_bytes=len(self._layers) * self._form.layer_bytes,
        )

    def copy_out(self, job: StoreJob) -> None:
        """Copy pages and begin to write them, as many as there is room for; compute thread only."""
        with self._changed:
            if job.epoch != self._epoch:
                return
            num_room = (self._max_store_bytes - self._store_bytes) // job.page_bytes
            is_open = self._access.takes_pages
            pages = job.pages[: num_room if is_open else 0]
            num_bytes = len(pages) * job.page_bytes
            self._store_bytes += num_bytes
        (_DROPPED_PAGES if is_open else _REFUSED_PAGES).inc(len(job.pages) - len(pages))
        memory = PageMemory()
        copies = tuple(encoded(page, job, self._layers, memory) for page in pages)
        with self._changed:
            if job.epoch != self._epoch:
                self._store_bytes -= num_bytes
                return
            self._stores.append(
                dataclasses.replace(job, pages=pages, num_bytes=num_bytes, copies=copies)
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
        memory = PageMemory()
        try:
            while (work := self._next()) is not None:
                if isinstance(work, LoadPart):
                    self._read(work, store)
                else:
                    self._run_store(work, store, memory)
        except BaseException as error:  # noqa: BLE001 - the thread's boundary: handed on, not kept
            self._crashed(error)
        finally:
            if store is not None:
                store.close()

    def _next(self) -> LoadPart | StoreJob | None:
        """Wait for something to do; None is the end."""
        with self._changed:
            while not self._closed:
                if (part := self._loads.next_part(self._staging.wants)) is not None:
                    return part
                if self._stores:
                    return self._stores.popleft()
                self._changed.wait()
            return None

    def _read(self, part: LoadPart, store: PageStore | None) -> None:
        job = part.job
        room_nLB = job.staged.room(part.group)
        digests = job.digests[part.group]
        reads = self._access.read(digests, job.form, room_nLB.numpy(), store)
        with self._changed:
            job.note(part.group, room_nLB, reads)
            if job.is_read:
                self._end(job)

    def _end(self, job: LoadJob, why_not_all: str | None = None) -> None:
        """Report a load with the pages that were read, unless it was reported or forgotten."""
        if not self._staging.finish(job.staged):
            return
        self._loads.drop(job.staged.load_id)
        self._report(job.result(why_not_all))

    def _run_store(self, job: StoreJob, store: PageStore | None, memory: PageMemory) -> None:
        begun_s, stored = time.monotonic(), list[int]()
        for group in equal_groups(len(job.pages), job.page_bytes):
            if store is None or not self._access.takes_pages:
                break
            pages = self._copies(group, job, memory)
            if pages is None:
                break
            written = self._access.write(pages, store)
            stored.extend(group.start + i for i, there in enumerate(written) if there)
        if store is not None:
            _REFUSED_PAGES.inc(len(job.pages) - len(stored))
            metrics.count_store(len(stored), job.page_bytes, time.monotonic() - begun_s)
        with self._changed:
            self._store_bytes -= job.num_bytes
            if job.epoch == self._epoch:
                self._report(StoreResult(store_id=job.store_id, stored=tuple(stored)))

    def _copies(
        self, group: slice, job: StoreJob, memory: PageMemory
    ) -> Sequence[EncodedPage] | None:
        """Return copies of pages, in memory or made in turn; None if their epoch is over before."""
        if job.copies is not None:
            return job.copies[group] if job.epoch == self._epoch else None
        memory.clear()
        copies = [self._copy(page, job, memory) for page in job.pages[group]]
        pages = [page for page in copies if page is not None]
        return pages if len(pages) == len(copies) else None

    def _copy(self, page: StorePage, job: StoreJob, memory: PageMemory) -> EncodedPage | None:
        """Copy a page out of the pool; None if its epoch is over."""
        with self._changed:
            if job.epoch != self._epoch:
                return None
            self._num_copying += 1
        try:
            return encoded(page, job, self._layers, memory)
        finally:
            with self._changed:
                self._num_copying -= 1
                self._copied.notify_all()
