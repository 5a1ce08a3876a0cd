"""What happened to the cache, as plain values for whoever publishes it. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from chunkmesh.indexed_page import IndexedPage


class ChangeKind(enum.Enum):
    """Names and numbers are those of the contract; the rest of its kinds concern the shell."""

    MATCHED = 1
    COMMITTED = 2
    INVALIDATED = 3
    EVICTED = 4
    DELETED = 5
    PINNED = 6
    UNPINNED = 7
    QUOTA_SET = 8


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change, of one namespace."""

    kind: ChangeKind
    namespace: bytes | None
    """None: a look-up found nothing, or pins ended of pages that are not there."""
    digests: tuple[bytes, ...] = ()
    """Pages concerned, in the order in which it happened to them."""
    num_queried_pages: int = 0
    """Of a look-up the pages asked for."""
    num_bytes: int = 0
    """Of the pages, values only; of a quota the bytes allowed."""

    @property
    def num_pages(self) -> int:
        """Pages concerned; of a look-up those found."""
        return len(self.digests)


OnChange: TypeAlias = Callable[[Change], None]
"""Called in the middle of an operation: must not call the cache."""


def unheard(_change: Change) -> None:
    """Tell nobody."""


def matched(pages: Sequence[IndexedPage], *, num_queried_pages: int) -> Change:
    """Return the change that a look-up is."""
    return Change(
        kind=ChangeKind.MATCHED,
        namespace=pages[0].namespace if pages else None,
        digests=tuple(page.digest for page in pages),
        num_queried_pages=num_queried_pages,
        num_bytes=sum(page.num_bytes for page in pages),
    )


def changes_of(kind: ChangeKind, pages: Iterable[IndexedPage]) -> Iterator[Change]:
    """Yield one change for each namespace that the pages are of."""
    families: dict[bytes, list[IndexedPage]] = {}
    for page in pages:
        families.setdefault(page.namespace, []).append(page)
    for namespace, family in families.items():
        yield Change(
            kind=kind,
            namespace=namespace,
            digests=tuple(page.digest for page in family),
            num_bytes=sum(page.num_bytes for page in family),
        )
