"""What the pages of one namespace come to. Pure; kept by the index, page by page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from chunkmesh.indexed_page import IndexedPage


@dataclasses.dataclass(slots=True, kw_only=True)
class NamespaceCounts:
    """Counts over the pages of one namespace."""

    model_layers: int
    """Layers of the whole model; the same for all its pages."""
    num_pages: int = 0
    """Visible pages."""
    num_partial_pages: int = 0
    num_bytes: int = 0
    """Of all pages, partial ones included."""
    num_pinned_pages: int = 0
    num_hits: int = 0
    """Matches that used one of its pages."""
    masks: dict[int, int] = dataclasses.field(default_factory=dict)
    """Number of pages by mask of stored layers; few masks are in use at a time."""

    @property
    def layers(self) -> int:
        """Mask of layers that are stored of at least one page."""
        union = 0
        for mask in self.masks:
            union |= mask
        return union

    @property
    def is_empty(self) -> bool:
        """Whether there are no pages."""
        return not self.masks

    def add(self, page: IndexedPage) -> None:
        """Count a page, as it is now."""
        self._count(page, 1)
        self.masks[page.layers] = self.masks.get(page.layers, 0) + 1

    def drop(self, page: IndexedPage) -> None:
        """Count a page no more; it is as it was when it was added."""
        self._count(page, -1)
        self.masks[page.layers] -= 1
        if not self.masks[page.layers]:
            del self.masks[page.layers]

    def agrees(self, pages: Iterable[IndexedPage]) -> bool:
        """Whether the counts are those of exactly these pages; of hits nobody else knows."""
        counted = NamespaceCounts(model_layers=self.model_layers, num_hits=self.num_hits)
        for page in pages:
            counted.add(page)
        return counted == self

    def _count(self, page: IndexedPage, number: int) -> None:
        if page.visible:
            self.num_pages += number
        else:
            self.num_partial_pages += number
        self.num_bytes += number * page.num_bytes
        self.num_pinned_pages += number * page.pinned
