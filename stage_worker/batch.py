"""Turns a microbatch into what the forward pass iterates over. Pure: plain values and numpy.

Every entry becomes one part: its activation rows, the slots its own K and V go to, and the slots
its queries look back at.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from stage_worker.orders import Entry, Microbatch
from stage_worker.page_table import PageTable, PageTables, SlotRun

MAX_RUNS = 8
"""More runs than this are cheaper to gather once than to attend to one by one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """Cached positions that all queries of a part see."""

    num_tokens: int
    """Positions of the request, >= 1: [0, num_tokens), or fewer, the last ones before its end."""
    runs: tuple[SlotRun, ...]
    """Their slots; empty if they are to be gathered."""
    page_ids: tuple[int, ...]
    """Pages to gather, covering them; empty if runs are read in place."""
    skipped_tokens: int = 0
    """Positions of the first gathered page that are not seen."""

    def tail(self, num_tokens: int, page_tokens: int) -> Context:
        """Return the last num_tokens >= 1 positions; all, if there are fewer."""
        dropped = self.num_tokens - num_tokens
        if dropped <= 0:
            return self
        if self.page_ids:
            pages, skipped = divmod(self.skipped_tokens + dropped, page_tokens)
            return Context(
                num_tokens=num_tokens,
                runs=(),
                page_ids=self.page_ids[pages:],
                skipped_tokens=skipped,
            )
        runs = list(self.runs)
        while dropped >= runs[0].num_tokens:
            dropped -= runs.pop(0).num_tokens
        runs[0] = SlotRun(begin=runs[0].begin + dropped, end=runs[0].end)
        return Context(num_tokens=num_tokens, runs=tuple(runs), page_ids=())


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One entry, placed in the activation and in the pool."""

    first_row: int
    """Its first row in the activation."""
    num_rows: int
    """>= 1; where it is 1 the context holds the part's own token too."""
    written: tuple[SlotRun, ...]
    """Slots of its own tokens."""
    context: Context | None
    """What was before its tokens; None at the start of a prompt."""
    through: Context
    """Everything up to its last token: what a query of only that token sees."""

    @property
    def last_row(self) -> int:
        """Row of its last token."""
        return self.first_row + self.num_rows - 1


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class BatchPlan:
    """A microbatch, ready to run."""

    positions_T: npt.NDArray[np.int64]
    parts: tuple[Part, ...]


def plan_batch(microbatch: Microbatch, tables: PageTables) -> BatchPlan:
    """Grow the page tables of a microbatch's rows and place its entries.

    Raises:
        InvariantViolated: a page id outside the pool, or positions without a page.
    """
    parts = []
    positions = []
    first_row = 0
    for entry in microbatch.entries:
        table = tables.grow(entry.row, entry.new_page_ids)
        parts.append(_place(entry, first_row, table, tables.page_tokens))
        positions.append(np.arange(entry.start, entry.start + entry.num_tokens))
        first_row += entry.num_tokens
    return BatchPlan(positions_T=np.concatenate(positions), parts=tuple(parts))


def _place(entry: Entry, first_row: int, table: PageTable, page_tokens: int) -> Part:
    end = entry.start + entry.num_tokens
    through = _context(end, table, page_tokens)
    if entry.num_tokens == 1:
        context: Context | None = through
    elif entry.start == 0:
        context = None
    else:
        context = _context(entry.start, table, page_tokens)
    return Part(
        first_row=first_row,
        num_rows=entry.num_tokens,
        written=table.slots(entry.start, end),
        context=context,
        through=through,
    )


def _context(num_tokens: int, table: PageTable, page_tokens: int) -> Context:
    runs = table.slots(0, num_tokens)
    if len(runs) <= MAX_RUNS:
        return Context(num_tokens=num_tokens, runs=runs, page_ids=())
    num_pages = -(-num_tokens // page_tokens)
    page_ids = tuple(table.page_ids[:num_pages])
    return Context(num_tokens=num_tokens, runs=(), page_ids=page_ids)
