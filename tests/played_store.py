"""A page store and a pool that tests of page I/O play."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Callable, Sequence

from chunkmesh.errors import CacheFault
from chunkmesh.page_record import Bytes, EncodedPage, PageFormat
from chunkmesh.stored_page import PageRead
from tests.page_samples import FORM, chain, layer_data, read_page

LAYERS = range(1, 3)
PAGE_BYTES = len(LAYERS) * FORM.layer_bytes
DIGESTS = chain(4)


class PlayedStore:
    """Pages in a dictionary; waits and fails when told to."""

    def __init__(self) -> None:
        self.pages: dict[bytes, EncodedPage] = {}
        self.fault: CacheFault | None = None
        self.full = False
        self.may_go = threading.Event()
        self.may_go.set()
        self.entered = threading.Event()
        self.num_calls = 0
        self.closed = False

    def write_pages(self, pages: Sequence[EncodedPage]) -> tuple[bool, ...]:
        """Keep copies of pages, whose memory is used again."""
        self._enter()
        if self.full:
            return (False,) * len(pages)
        for page in pages:
            layers = tuple((layer, memoryview(bytes(value))) for layer, value in page.layers)
            self.pages[page.digest] = dataclasses.replace(page, layers=layers)
        return (True,) * len(pages)

    def read_pages(
        self, digests: Sequence[bytes], form: PageFormat, first_layer: int, into: Bytes
    ) -> tuple[PageRead, ...]:
        """Return pages."""
        self._enter()
        reads: list[PageRead] = []
        for digest, room in zip(digests, into, strict=True):
            page = self.pages.get(digest)
            values = (page.record, *(bytes(v) for _, v in page.layers)) if page else (None,)
            reads.append(read_page(digest, form, first_layer, values, room))
        return tuple(reads)

    def close(self) -> None:
        """Note it."""
        self.closed = True

    def _enter(self) -> None:
        self.num_calls += 1
        self.entered.set()
        assert self.may_go.wait(5)
        if self.fault is not None:
            raise self.fault


class PlayedStage:
    """A pool whose page i holds the bytes of DIGESTS[i], until overwritten."""

    def __init__(self) -> None:
        self.on_read: Callable[[], None] = lambda: None

    def read_page(self, layer: int, page_id: int) -> Bytes:
        """Return a page."""
        self.on_read()
        return layer_data(DIGESTS[page_id], layer).reshape(4, -1)
