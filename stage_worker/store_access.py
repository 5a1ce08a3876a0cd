"""Reads and writes the page store for all I/O threads, and leaves it alone after a failure."""

from __future__ import annotations

from collections.abc import Sequence

from chunkmesh.errors import CacheFault
from chunkmesh.page_record import Bytes, EncodedPage, PageFormat
from chunkmesh.redis_metrics import REDIS_FAULTS
from chunkmesh.stored_page import PageRead
from stage_worker.page_store import PageStore
from stage_worker.pause import Pause


class StoreAccess:
    """What the threads know together of a store that each has a client of."""

    def __init__(self, first_layer: int, *, is_there: bool) -> None:
        """Begin with a store that is believed in, if there is one."""
        self._first_layer = first_layer
        self._is_there = is_there
        self._away = Pause("prefix cache away")
        self._full = Pause("prefix cache refuses pages")

    @property
    def takes_pages(self) -> bool:
        """Whether it makes sense to write."""
        return self._is_there and not (self._away.active or self._full.active)

    def read(
        self, digests: Sequence[bytes], form: PageFormat, into: Bytes, store: PageStore | None
    ) -> tuple[PageRead, ...]:
        """Read pages into [pages, layers, layer_bytes]; return nothing if the store is away."""
        if store is None or self._away.active:
            return ()
        try:
            return store.read_pages(digests, form, self._first_layer, into)
        except CacheFault as error:
            REDIS_FAULTS.labels("read").inc()
            self._away.begin(str(error))
            return ()

    def write(self, pages: Sequence[EncodedPage], store: PageStore) -> tuple[bool, ...]:
        """Write pages; say which are there, or nothing if the store is away."""
        try:
            written = store.write_pages(pages)
        except CacheFault as error:
            REDIS_FAULTS.labels("write").inc()
            self._away.begin(str(error))
            return ()
        if not all(written):
            self._full.begin("the server may be out of memory")
        return written
