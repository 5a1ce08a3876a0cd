"""Page tables of the requests on a stage: which slots hold which positions. Pure.

A slot is page_id * page_tokens + offset. Neighbouring pages are joined into runs, because a run
is read as a view of the pool while scattered pages must be gathered.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from chunkmesh.errors import InvariantViolated


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlotRun:
    """Slots [begin, end) that hold consecutive positions."""

    begin: int
    end: int
    """> begin."""

    @property
    def num_tokens(self) -> int:
        """Positions in the run."""
        return self.end - self.begin


class PageTable:
    """Pages of one request, in the order of their positions."""

    def __init__(self, page_tokens: int) -> None:
        self._page_tokens = page_tokens
        self._page_ids: list[int] = []
        self._runs: list[SlotRun] = []

    @property
    def page_ids(self) -> Sequence[int]:
        """All pages so far; only read."""
        return self._page_ids

    def extend(self, page_ids: Sequence[int]) -> None:
        """Append pages."""
        self._page_ids.extend(page_ids)
        for page_id in page_ids:
            begin = page_id * self._page_tokens
            if self._runs and self._runs[-1].end == begin:
                begin = self._runs.pop().begin
            self._runs.append(SlotRun(begin=begin, end=(page_id + 1) * self._page_tokens))

    def slots(self, first: int, last: int) -> tuple[SlotRun, ...]:
        """Return the slots of positions [first, last), as few runs as possible.

        Raises:
            InvariantViolated: the table is too short.
        """
        if last > len(self._page_ids) * self._page_tokens:
            raise InvariantViolated(
                f"position {last - 1} lies behind {len(self._page_ids)} pages "
                f"of {self._page_tokens} tokens"
            )
        found = []
        position = 0
        for run in self._runs:
            begin = run.begin + max(first - position, 0)
            end = min(run.end, run.begin + last - position)
            if begin < end:
                found.append(SlotRun(begin=begin, end=end))
            position += run.num_tokens
        return tuple(found)


class PageTables:
    """Owner of the page tables of all rows of a stage."""

    def __init__(self, *, num_pages: int, page_tokens: int) -> None:
        self.page_tokens = page_tokens
        self._num_pages = num_pages
        self._rows: dict[int, PageTable] = {}

    def grow(self, row: int, new_page_ids: Sequence[int]) -> PageTable:
        """Append pages to a row, which begins with its first microbatch, and return its table.

        Raises:
            InvariantViolated: a page id outside the pool.
        """
        for page_id in new_page_ids:
            if not 0 <= page_id < self._num_pages:
                raise InvariantViolated(
                    f"page {page_id} of row {row}; the pool has {self._num_pages}"
                )
        table = self._rows.get(row)
        if table is None:
            table = self._rows[row] = PageTable(self.page_tokens)
        table.extend(new_page_ids)
        return table

    def release(self, row: int) -> None:
        """Forget a row; unknown rows are fine, a release may follow an abort before its start."""
        self._rows.pop(row, None)
