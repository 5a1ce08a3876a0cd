"""What page I/O is asked for and what becomes of it: loads, stores, and their parts.

Shapes: n pages, L layers, B bytes of a page in one layer.
"""

from __future__ import annotations

import collections
import dataclasses
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import torch

from chunkmesh.page_record import (
    EncodedPage,
    PageFormat,
    PageMemory,
    PageRecord,
    encode_page,
)
from chunkmesh.stored_page import PageRead
from stage_worker import metrics
from stage_worker.host_pages import HostPages
from stage_worker.orders import StorePage
from stage_worker.page_store import PageReader
from stage_worker.staging import StagedLoad

LEAST_STAGING_BYTES = 1 << 30
LEAST_STORE_BYTES = 256 << 20
_GROUP_BYTES = 16 << 20
"""About what is read or written between two looks at whether it is still wanted."""
_FIRST_GROUP_BYTES = 1 << 20
"""Of a load; each group has twice as much as the one before. So a load that has to end early has
something, and a long one still reads in large pieces."""


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

    staging_bytes: int = LEAST_STAGING_BYTES
    """Of loads that were neither taken nor cancelled."""
    store_bytes: int = LEAST_STORE_BYTES
    """Of pages that stores under way hold."""
    host: HostPages = dataclasses.field(default_factory=lambda: HostPages(0))
    """Memory for host pages."""
    pinned: bool = False
    """Whether staging is pinned, for a GPU."""

    @classmethod
    def of_pool(
        cls, kv_bytes: int, host: HostPages, free_bytes: int | None, *, pinned: bool = False
    ) -> PageIOLimits:
        """Give each way room for the longest prompt of a pool, at most a quarter of what is free.

        free_bytes is what the machine has left, None if that is not known.
        """
        room_bytes = min(kv_bytes, (free_bytes or 0) // 4)
        return cls(
            staging_bytes=max(LEAST_STAGING_BYTES, room_bytes),
            store_bytes=max(LEAST_STORE_BYTES, room_bytes),
            host=host,
            pinned=pinned,
        )


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class LoadJob:
    """A load that has not ended; groups of its pages are read by several threads at once.

    But for room of its staged load, everything is for one thread at a time.
    """

    form: PageFormat
    digests: tuple[bytes, ...]
    """Of the pages to read; host pages lie before them."""
    staged: StagedLoad
    begun_s: float = dataclasses.field(default_factory=time.monotonic)
    bad_digests: tuple[bytes, ...] = ()
    _end: int = dataclasses.field(init=False)
    """Pages from here on are not wanted: one before them is bad, or there is no room."""
    _why_not_all: str = "no room"
    _groups: Iterator[slice] = dataclasses.field(init=False)
    """Those that no thread has begun."""

    def __post_init__(self) -> None:
        """Begin before the first page."""
        self._end = self.staged.num_room
        self._groups = growing_groups(
            self._end, self.staged.page_bytes, slab_pages=self.staged.slab_pages
        )

    @property
    def is_read(self) -> bool:
        """Whether all pages are there that will ever be."""
        return self.staged.num_read >= self._end

    def next_group(self) -> slice | None:
        """Return the next pages to read, None if there are none."""
        group = next(self._groups, None)
        return group if group is not None and group.start < self._end else None

    def note(self, group: slice, pages_nLB: torch.Tensor, reads: Sequence[PageRead]) -> None:
        """Take the good ones of the pages of a group; nothing was read if Redis is away.

        The load ends before the first that is not good.
        """
        num_good = next((i for i, read in enumerate(reads) if read != "ok"), len(reads))
        self.staged.add(group.start, pages_nLB[:num_good])
        if num_good == len(pages_nLB):
            return
        bad = zip(self.digests[group], reads, strict=False)
        self.bad_digests += tuple(digest for digest, read in bad if read != "ok")
        if group.start + num_good < self._end:
            self._end = group.start + num_good
            self._why_not_all = reads[num_good] if reads else "redis"

    def result(self, why_not_all: str | None = None) -> LoadResult:
        """Return what is told of a finished load, and count what it lacks."""
        num_pages = self.staged.num_pages or 0
        if num_pages < len(self.digests):
            reason = why_not_all or self._why_not_all
            metrics.NOT_LOADED_PAGES.labels(reason=reason).inc(len(self.digests) - num_pages)
        num_bytes, took_s = num_pages * self.staged.page_bytes, time.monotonic() - self.begun_s
        metrics.count_load(num_pages, num_bytes, took_s)
        return LoadResult(
            load_id=self.staged.load_id,
            num_pages=len(self.staged.host_ids) + num_pages,
            num_host_pages=len(self.staged.host_ids),
            bad_digests=self.bad_digests,
            num_bytes=num_bytes,
            took_us=round(1e6 * took_s),
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LoadPart:
    """Some pages of a load, for one thread to read."""

    job: LoadJob
    group: slice


class LoadQueue:
    """Owner of the loads that have not ended, which are read in turn. For one thread at a time."""

    def __init__(self) -> None:
        """Begin with none."""
        self._running: dict[int, LoadJob] = {}
        self._unread: collections.deque[LoadJob] = collections.deque()
        """Those with pages that no thread has begun."""

    def add(self, job: LoadJob) -> None:
        """Take one in behind the others."""
        self._running[job.staged.load_id] = job
        self._unread.append(job)

    def find(self, load_id: int) -> LoadJob | None:
        """Return a load that runs, if it does."""
        return self._running.get(load_id)

    def drop(self, load_id: int) -> None:
        """Forget a load; its parts are not wanted any more."""
        self._running.pop(load_id, None)

    def clear(self) -> None:
        """Forget all."""
        self._running.clear()
        self._unread.clear()

    def next_part(self, wants: Callable[[StagedLoad], bool]) -> LoadPart | None:
        """Return some pages to read, of another load each time if there are several."""
        while self._unread:
            job = self._unread.popleft()
            group = job.next_group() if wants(job.staged) else None
            if group is not None:
                self._unread.append(job)
                return LoadPart(job=job, group=group)
        return None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class StoreJob:
    """A store that has not ended."""

    epoch: int
    form: PageFormat
    store_id: int
    pages: tuple[StorePage, ...]
    """Empty if the store was dropped."""
    source: PageReader
    """Where they lie: the pool or host memory."""
    page_bytes: int
    num_bytes: int = 0
    """That are counted for it."""
    copies: tuple[EncodedPage, ...] | None = None
    """Of the pages, if they are made in turn and were made."""


def encoded(page: StorePage, job: StoreJob, layers: range, memory: PageMemory) -> EncodedPage:
    """Copy a page out of where it lies into memory, with what Redis is to know of it."""
    record = PageRecord(
        format=job.form, namespace=page.namespace, parent=page.parent, page_index=page.page_index
    )
    data = ((layer, np.ravel(job.source.read_page(layer, page.page_id))) for layer in layers)
    return encode_page(page.digest, record, data, memory)


def equal_groups(num_pages: int, page_bytes: int) -> Iterator[slice]:
    """Cut pages into groups of about the same bytes."""
    step = max(1, _GROUP_BYTES // page_bytes)
    for start in range(0, num_pages, step):
        yield slice(start, min(start + step, num_pages))


def growing_groups(num_pages: int, page_bytes: int, *, slab_pages: int) -> Iterator[slice]:
    """Cut pages into groups, each of about twice the bytes of the one before, up to a limit.

    None goes across the end of a slab.
    """
    start, group_bytes = 0, _FIRST_GROUP_BYTES
    while start < num_pages:
        slab_end = start - start % slab_pages + slab_pages
        end = min(num_pages, slab_end, start + max(1, group_bytes // page_bytes))
        yield slice(start, end)
        start, group_bytes = end, min(2 * group_bytes, _GROUP_BYTES)
