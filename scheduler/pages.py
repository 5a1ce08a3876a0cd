"""Which pages of a route's KV pool are in use. Pure; one allocator per route.

A page id means the same token positions on every stage. Each page counts its holds: one of every
output that has it and one of every store that reads it. It is free again when the last hold goes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from chunkmesh.errors import InvariantViolated


class PageAllocator:
    """Hands out pages, contiguous and ascending where it can: stages then use views, not copies."""

    def __init__(self, num_pages: int) -> None:
        """Begin with all pages 0 <= id < num_pages free."""
        self._holds = np.zeros(num_pages, dtype=np.int32)
        """Holds of each page, >= 0; 0 means free."""
        self._num_free = num_pages
        """Pages without a hold."""

    @property
    def num_pages(self) -> int:
        """Size of the pool."""
        return len(self._holds)

    @property
    def num_free(self) -> int:
        """Pages that can be handed out now."""
        return self._num_free

    def allocate(self, num_pages: int) -> tuple[int, ...]:
        """Hand out num_pages >= 1 pages, each with one hold.

        The smallest free run that is long enough is used, from its start; if there is none, the
        longest runs, so that the page table has few breaks.

        Raises:
            InvariantViolated: fewer than num_pages are free.
        """
        if num_pages > self._num_free:
            raise InvariantViolated(f"{num_pages} pages wanted, {self._num_free} are free")
        free = np.flatnonzero(self._holds == 0)
        chosen = _pick_runs(free, num_pages)
        self._holds[chosen] = 1
        self._num_free -= num_pages
        return tuple(chosen.tolist())

    def allocate_behind(self, page_id: int) -> int:
        """Hand out the page behind a page in use, if it is free, with one hold.

        Else one in the midst of the longest free run, where the next ones can follow.

        Raises:
            InvariantViolated: none is free.
        """
        chosen = page_id + 1
        if chosen == self.num_pages or self._holds[chosen]:
            chosen = _middle_of_longest_run(np.flatnonzero(self._holds == 0))
        self._holds[chosen] = 1
        self._num_free -= 1
        return chosen

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
        self._num_free += int(np.count_nonzero(holds == 1))

    def check_integrity(self) -> None:
        """Compare the counts with each other.

        Raises:
            InvariantViolated: they differ.
        """
        num_free = int(np.count_nonzero(self._holds == 0))
        if num_free != self._num_free or int(self._holds.min(initial=0)) < 0:
            raise InvariantViolated(f"{num_free} pages are free, {self._num_free} are counted")


def _middle_of_longest_run(free: npt.NDArray[np.intp]) -> int:
    """Choose one of the ascending free ids.

    Raises:
        InvariantViolated: there is none.
    """
    if not len(free):
        raise InvariantViolated("a page is wanted, none is free")
    starts = np.flatnonzero(np.diff(free, prepend=-2) != 1)
    lengths = np.diff(starts, append=len(free))
    longest = int(np.argmax(lengths))
    return int(free[starts[longest] + lengths[longest] // 2])


def _pick_runs(free: npt.NDArray[np.intp], num_pages: int) -> npt.NDArray[np.intp]:
    """Choose num_pages of the ascending free ids, ascending, in as few runs as greed finds."""
    starts = np.flatnonzero(np.diff(free, prepend=-2) != 1)
    lengths = np.diff(starts, append=len(free))
    fitting = np.flatnonzero(lengths >= num_pages)
    if len(fitting):
        start = starts[fitting[np.argmin(lengths[fitting])]]
        return free[start : start + num_pages]
    order = np.argsort(-lengths, kind="stable")
    num_runs = int(np.searchsorted(np.cumsum(lengths[order]), num_pages)) + 1
    ids = np.concatenate([free[starts[i] : starts[i] + lengths[i]] for i in order[:num_runs]])
    return np.sort(ids[:num_pages])
