"""Which pages of one memory are in use. Pure; one allocator for a KV pool, one for host memory.

A page id means the same token positions on every stage. Each page counts its holds: one of every
output that has it and one of every store that reads it. When the last hold goes it can be handed
out again. A cached one keeps its contents until it is needed (cached_pages.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chunkmesh.errors import InvariantViolated
from scheduler.actions import PageToStore
from scheduler.cached_pages import CachedPages


class PageAllocator:
    """Hands out pages, contiguous and ascending where it can: stages then use views, not copies."""

    def __init__(self, num_pages: int) -> None:
        """Begin with all pages 0 <= id < num_pages free."""
        self.generation = 0
        """Raised when nothing that was computed so far may be kept for later requests."""
        self.cached = CachedPages()
        """What pages hold that later requests may use; changed here alone."""
        self._evicted: list[PageToStore] = []
        """What has made room and was not asked for yet."""
        self.has_evicted = False
        """Whether there is any of that; changed here alone."""
        self._holds = np.zeros(num_pages, dtype=np.int32)
        """Holds of each page, >= 0; 0 means that it can be handed out."""
        self._is_cached = np.zeros(num_pages, dtype=np.bool_)
        """Pages in cached."""
        self._num_free = num_pages
        """Pages without a hold."""

    @property
    def num_pages(self) -> int:
        """Size of the pool."""
        return len(self._holds)

    @property
    def num_free(self) -> int:
        """Pages that can be handed out now, cached ones included."""
        return self._num_free

    def num_idle(self, page_ids: Sequence[int]) -> int:
        """Count those of the pages that nobody holds."""
        return int(np.count_nonzero(self._holds[np.asarray(page_ids, dtype=np.intp)] == 0))

    def allocate(self, num_pages: int) -> tuple[int, ...]:
        """Hand out num_pages >= 1 pages, each with one hold; evict only what that takes.

        The smallest free run that is long enough is used, from its start; if there is none, the
        longest runs, so that the page table has few breaks.

        Raises:
            InvariantViolated: fewer than num_pages are free.
        """
        chosen = self._make_room(num_pages).pick(num_pages)
        self._holds[chosen] = 1
        self._num_free -= num_pages
        return tuple(chosen.tolist())

    def allocate_behind(self, page_id: int) -> int:
        """Hand out the page behind a page in use, if it is free and empty, with one hold.

        Else one in the midst of the longest free run, where the next ones can follow.

        Raises:
            InvariantViolated: none is free.
        """
        chosen = page_id + 1
        if chosen == self.num_pages or self._holds[chosen] or self._is_cached[chosen]:
            chosen = self._make_room(1).middle_of_longest()
        self._holds[chosen] = 1
        self._num_free -= 1
        return chosen

    def take_cached(self, page_ids: Sequence[int]) -> None:
        """Add a hold to cached pages, held or idle; each id at most once."""
        ids = np.asarray(page_ids, dtype=np.intp)
        idle = ids[self._holds[ids] == 0]
        self._holds[ids] += 1
        self._num_free -= len(idle)
        self.cached.wake(idle.tolist())

    def keep(self, namespace: bytes, digests: Sequence[bytes], page_ids: Sequence[int]) -> None:
        """Let later requests find the leading pages of a prompt, which are full and held."""
        added, removed = self.cached.insert(namespace, digests, page_ids)
        self._is_cached[removed] = False
        self._is_cached[added] = True

    def lose(self, stages: frozenset[int]) -> None:
        """Note that what some stages hold of all pages is gone; begin anew with nothing held."""
        self.cached.lose(stages)

    def take_evicted(self) -> list[PageToStore]:
        """Return what has made room since this was asked last.

        Their contents stand until what is handed out in their stead is written.
        """
        evicted, self._evicted = self._evicted, []
        self.has_evicted = False
        return evicted

    def pin(self, page_ids: Sequence[int]) -> None:
        """Add a hold to pages in use; each id at most once.

        Raises:
            InvariantViolated: a page is free.
        """
        ids = np.asarray(page_ids, dtype=np.intp)
        if not self._holds[ids].all():
            raise InvariantViolated("a free page was pinned")
        self._holds[ids] += 1

    def release(self, page_ids: Sequence[int]) -> None:
        """Drop a hold of each page; each id at most once.

        Raises:
            InvariantViolated: a page is free already.
        """
        ids = np.asarray(page_ids, dtype=np.intp)
        holds = self._holds[ids]
        if not holds.all():
            raise InvariantViolated("a free page was released")
        self._holds[ids] = holds - 1
        freed = ids[holds == 1]
        self._num_free += len(freed)
        self.cached.rest(freed[self._is_cached[freed]].tolist())

    def distrust(self, page_ids: Sequence[int]) -> None:
        """Forget what these pages hold, and what was computed from them or is being computed."""
        self.generation += 1
        self._is_cached[self.cached.forget(page_ids)] = False

    def forget_cached(self) -> int:
        """Forget what all pages hold, and what is being computed; return how many they were."""
        self.generation += 1
        self._is_cached[:] = False
        return self.cached.clear()

    def drop_holds(self) -> None:
        """Begin anew with the pages as they are: nobody is left who held any."""
        held = np.flatnonzero(self._holds)
        self._holds[:] = 0
        self._num_free = self.num_pages
        self.cached.rest(held[self._is_cached[held]].tolist())

    def check_integrity(self) -> None:
        """Compare the counts with each other.

        Raises:
            InvariantViolated: they differ.
        """
        num_free = int(np.count_nonzero(self._holds == 0))
        if num_free != self._num_free or int(self._holds.min(initial=0)) < 0:
            raise InvariantViolated(f"{num_free} pages are free, {self._num_free} are counted")
        if int(np.count_nonzero(self._is_cached)) != len(self.cached):
            raise InvariantViolated(f"{len(self.cached)} pages are cached, others are marked")

    def _make_room(self, num_pages: int) -> _Runs:
        """Evict until so many pages are free and empty; return where all such are.

        Raises:
            InvariantViolated: fewer are free.
        """
        if num_pages > self._num_free:
            raise InvariantViolated(f"{num_pages} pages wanted, {self._num_free} are free")
        num_empty = self._num_free - self.cached.num_idle
        if num_pages > num_empty:
            evicted, whole = self.cached.evict(num_pages - num_empty)
            self._is_cached[evicted] = False
            self._evicted += whole
            self.has_evicted = True
        is_empty = np.zeros(self.num_pages + 2, dtype=np.bool_)  # With a border at either end.
        is_empty[1:-1] = (self._holds == 0) & ~self._is_cached
        borders = np.flatnonzero(is_empty[1:] != is_empty[:-1])
        return _Runs(starts=borders[::2], lengths=borders[1::2] - borders[::2])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Runs:
    """Free and empty pages: runs of ids that follow each other, ascending, at least one."""

    starts: npt.NDArray[np.intp]
    lengths: npt.NDArray[np.intp]
    """Of each, >= 1."""

    def middle_of_longest(self) -> int:
        """Choose one id."""
        longest = int(np.argmax(self.lengths))
        return int(self.starts[longest] + self.lengths[longest] // 2)

    def pick(self, num_pages: int) -> npt.NDArray[np.intp]:
        """Choose num_pages of the ids, ascending, in as few runs as greed finds."""
        fitting = np.flatnonzero(self.lengths >= num_pages)
        if len(fitting):
            start = self.starts[fitting[np.argmin(self.lengths[fitting])]]
            return np.arange(start, start + num_pages)
        order = np.argsort(-self.lengths, kind="stable")
        num_runs = int(np.searchsorted(np.cumsum(self.lengths[order]), num_pages)) + 1
        longest = [
            np.arange(self.starts[run], self.starts[run] + self.lengths[run])
            for run in order[:num_runs]
        ]
        return np.sort(np.concatenate(longest)[:num_pages])
