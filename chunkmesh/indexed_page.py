"""A page as the prefix index keeps it, where it stands, and the lock that holds pages. Pure."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PagePlace:
    """Where a page stands; all but the priority follow from its digest."""

    namespace: bytes
    """First link of its digest chain."""
    digest: bytes
    parent: bytes
    """Digest of the page before it; the namespace for the first."""
    page_index: int | None = None
    """Index in its prompt, if a record said so."""
    priority: int = 0
    """Of the requests that filled it."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class IndexedPage:
    """A stored page; only the index changes it, also once it has left the index."""

    namespace: bytes
    digest: bytes
    parent: bytes
    model_layers: int
    page_index: int | None
    """None: neither a record nor a known parent told."""
    priority: int
    """Highest so far."""
    layers: int = 0
    """Mask of stored layers."""
    num_bytes: int = 0
    visible: bool = False
    """Whether all model_layers are stored."""
    locks: int = 0
    """Live PageLocks that hold it."""
    pinned: bool = False
    num_hits: int = 0
    """Matches that used it."""
    last_used: int = 0
    """Tick of the last match or cover; unequal for pages of different calls."""
    used_s: float = 0.0
    """Time of the last match or cover."""

    @property
    def is_held(self) -> bool:
        """Whether nothing but an invalidation may take it."""
        return self.locks > 0 or self.pinned


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PageLock:
    """Keeps the pages of one match, the last one included, from eviction until unlocked."""

    pages: tuple[IndexedPage, ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PageInfo:
    """State of one page; of an unknown one too."""

    layers: int
    """Mask of stored layers, 0 if unknown."""
    visible: bool
    num_hits: int
    """Matches that used it."""
