"""How many pages and bytes an operation concerns. Pure."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from chunkmesh.indexed_page import IndexedPage


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Amount:
    """Pages concerned."""

    num_pages: int
    num_bytes: int
    """Values only."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Removal:
    """Pages that went, or would go."""

    num_pages: int
    num_bytes: int
    """Values only."""
    num_held_pages: int
    """Chosen pages that stay: they, or pages below them, are leased, pinned or not chosen."""


def amount_of(pages: Iterable[IndexedPage]) -> Amount:
    """Count pages."""
    sizes = [page.num_bytes for page in pages]
    return Amount(num_pages=len(sizes), num_bytes=sum(sizes))


def removal_of(pages: Iterable[IndexedPage], *, num_held_pages: int) -> Removal:
    """Count pages that go beside those that stay."""
    amount = amount_of(pages)
    return Removal(
        num_pages=amount.num_pages, num_bytes=amount.num_bytes, num_held_pages=num_held_pages
    )
