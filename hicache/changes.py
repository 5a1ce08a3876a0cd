"""What happened to the cache, as plain values for whoever publishes it. Pure."""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeAlias

from chunkmesh.coverage import Coverage
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
class Stored:
    """What a commit said of its pages."""

    pages: tuple[tuple[bytes, bytes, int], ...]
    """(digest, parent, priority)."""
    coverage: Coverage


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A change as watchers are told of it."""

    kind: ChangeKind
    namespace: bytes | None
    first: bytes | None
    """First page concerned; None if there is none."""
    num_pages: int
    num_queried_pages: int
    num_bytes: int


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
    stored: Stored | None = None
    """Of a commit."""
    by_time: bool = False
    """Whether a time was over, which every replica finds out by itself."""

    @property
    def summary(self) -> Summary:
        """What watchers are told."""
        return Summary(
            kind=self.kind,
            namespace=self.namespace,
            first=self.digests[0] if self.digests else None,
            num_pages=self.num_pages,
            num_queried_pages=self.num_queried_pages,
            num_bytes=self.num_bytes,
        )

    @property
    def num_pages(self) -> int:
        """Pages concerned; of a look-up those found."""
        return len(self.digests)


OnChange: TypeAlias = Callable[[Change], None]
"""Called in the middle of an operation: must not call the cache."""


OnLease: TypeAlias = Callable[[str, bytes | None, float], None]
"""Called with a lease's id, its last page and how long it holds, None and 0 when it was released;
must not call the cache."""


def unheard(_change: Change) -> None:
    """Tell nobody."""


def unleased(_lease_id: str, _last: bytes | None, _ttl_s: float) -> None:
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


def changes_of(
    kind: ChangeKind, pages: Iterable[IndexedPage], *, by_time: bool = False
) -> Iterator[Change]:
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
            by_time=by_time,
        )
