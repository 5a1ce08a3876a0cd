"""What page I/O needs of its neighbours: a client of the page store, and a pool to read from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from chunkmesh.page_record import Bytes, EncodedPage, PageFormat
from chunkmesh.stored_page import PageRead


class PageStore(Protocol):
    """A client of the page store, such as chunkmesh.kv_store.KvStore; for one thread."""

    def write_pages(self, pages: Sequence[EncodedPage]) -> tuple[bool, ...]:
        """Write pages; say which are there. Raises CacheFault."""
        ...

    def read_pages(
        self, digests: Sequence[bytes], form: PageFormat, first_layer: int, into: Bytes
    ) -> tuple[PageRead, ...]:
        """Read pages into [pages, layers, layer_bytes]. Raises CacheFault."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class PageReader(Protocol):
    """The part of a stage that stores need."""

    def read_page(self, layer: int, page_id: int) -> Bytes:
        """Return the bytes of a page in one layer (absolute index); any thread may call."""
        ...
