"""What the pages of each namespace come to. Pure; kept by the index, page by page."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping

from chunkmesh.errors import InvalidRequest
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
        same_model = True
        for page in pages:
            counted.add(page)
            same_model = same_model and page.model_layers == self.model_layers
        return same_model and counted == self

    def _count(self, page: IndexedPage, number: int) -> None:
        if page.visible:
            self.num_pages += number
        else:
            self.num_partial_pages += number
        self.num_bytes += number * page.num_bytes
        self.num_pinned_pages += number * page.pinned


class CountsByNamespace:
    """Owner of the counts of all namespaces that have pages."""

    def __init__(self) -> None:
        self._counts: dict[bytes, NamespaceCounts] = {}

    @property
    def all(self) -> Mapping[bytes, NamespaceCounts]:
        """Counts by namespace; to look at only."""
        return self._counts

    def add(self, page: IndexedPage) -> None:
        """Count a page.

        Raises:
            InvalidRequest: the namespace is of a model with another number of layers.
        """
        counts = self._counts.get(page.namespace)
        if counts is None:
            counts = self._counts[page.namespace] = NamespaceCounts(model_layers=page.model_layers)
        if counts.model_layers != page.model_layers:
            raise InvalidRequest(
                f"namespace {page.namespace.hex()} is of {counts.model_layers} layers; now "
                f"{page.model_layers} are named",
                field="model_layers",
            )
        counts.add(page)

    def drop(self, page: IndexedPage) -> bool:
        """Count a page no more; return whether it was the last of its namespace."""
        counts = self._counts[page.namespace]
        counts.drop(page)
        if counts.is_empty:
            del self._counts[page.namespace]
        return counts.is_empty

    def hit(self, namespace: bytes) -> None:
        """Count a match."""
        self._counts[namespace].num_hits += 1

    def clear(self) -> None:
        """Forget all counts."""
        self._counts.clear()

    def agree(self, pages: Iterable[IndexedPage]) -> bool:
        """Whether the counts are those of exactly these pages."""
        families: dict[bytes, list[IndexedPage]] = {}
        for page in pages:
            families.setdefault(page.namespace, []).append(page)
        return self._counts.keys() == families.keys() and all(
            self._counts[namespace].agrees(family) for namespace, family in families.items()
        )
