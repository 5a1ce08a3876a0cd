"""Turns a microbatch into the arrays that paged kernels read. Pure: plain values and numpy.

Neighbouring entries of one kind, chunks or single tokens, are attended to by one call: a run.

Shapes: T rows, B sequences of a run, p pages of the longest of them.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from stage_worker.orders import Entry, Microbatch
from stage_worker.paged.tables import Ids, PageArrays

Index = npt.NDArray[np.int64]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The rows of an entry."""

    first_row: int
    last_row: int
    """>= first_row; the row itself, not behind it."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RunPlan:
    """Sequences whose queries lie behind one another, each its sequence's last positions."""

    first_row: int
    row_counts: tuple[int, ...]
    """Query rows of each sequence; all 1, or none of them is."""
    key_counts: tuple[int, ...]
    """Keys that the last query of each sequence sees, its own included."""
    page_table_Bp: Ids
    """Padded with page 0."""

    @property
    def num_rows(self) -> int:
        """Query rows of all sequences."""
        return sum(self.row_counts)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PagedPlan:
    """A microbatch, placed in its activation and in the pool."""

    positions_T: Index
    slots_T: Index
    """Where the keys and values of each row go: page * page_tokens + offset."""
    runs: tuple[RunPlan, ...]
    places: tuple[Place, ...]
    """Where each entry is in the activation."""
    page_ids: tuple[Ids, ...]
    """All pages of each entry's row."""
    unfilled_page_ids: Ids
    """Those that are handed out now and not filled to their ends."""


def plan_pages(microbatch: Microbatch, tables: PageArrays) -> PagedPlan:
    """Grow the page tables of a microbatch's rows and place its entries.

    Raises:
        InvariantViolated: a page id outside the pool, or positions without a page.
    """
    entries = microbatch.entries
    page_ids = tuple(
        tables.grow(entry.row, entry.new_page_ids, entry.start + entry.num_tokens)
        for entry in entries
    )
    positions = [np.arange(entry.start, entry.start + entry.num_tokens) for entry in entries]
    ends = list(itertools.accumulate(entry.num_tokens for entry in entries))
    slots = [
        pages[position // tables.page_tokens] * np.int64(tables.page_tokens)
        + position % tables.page_tokens
        for pages, position in zip(page_ids, positions, strict=True)
    ]
    places = tuple(
        Place(first_row=end - entry.num_tokens, last_row=end - 1)
        for end, entry in zip(ends, entries, strict=True)
    )
    return PagedPlan(
        positions_T=np.concatenate(positions),
        slots_T=np.concatenate(slots),
        runs=tuple(_runs(entries, places, page_ids)),
        places=places,
        page_ids=page_ids,
        unfilled_page_ids=np.concatenate(
            [
                _unfilled(entry, pages, tables.page_tokens)
                for entry, pages in zip(entries, page_ids, strict=True)
            ]
        ),
    )


def last_token_run(plan: PagedPlan, entries: Sequence[int]) -> RunPlan:
    """Return the last tokens of some entries, at least one, as a run of their own from row 0."""
    return RunPlan(
        first_row=0,
        row_counts=(1,) * len(entries),
        key_counts=tuple(
            int(plan.positions_T[plan.places[entry].last_row]) + 1 for entry in entries
        ),
        page_table_Bp=_table([plan.page_ids[entry] for entry in entries]),
    )


def _runs(
    entries: Sequence[Entry], places: Sequence[Place], page_ids: Sequence[Ids]
) -> list[RunPlan]:
    runs = []
    indices = range(len(entries))
    for _, group in itertools.groupby(indices, lambda index: entries[index].num_tokens == 1):
        members = list(group)
        runs.append(
            RunPlan(
                first_row=places[members[0]].first_row,
                row_counts=tuple(entries[index].num_tokens for index in members),
                key_counts=tuple(
                    entries[index].start + entries[index].num_tokens for index in members
                ),
                page_table_Bp=_table([page_ids[index] for index in members]),
            )
        )
    return runs


def _unfilled(entry: Entry, page_ids: Ids, page_tokens: int) -> Ids:
    num_old = len(page_ids) - len(entry.new_page_ids)
    num_begun = -(-entry.start // page_tokens)  # one that was copied may be new to the row
    num_filled = (entry.start + entry.num_tokens) // page_tokens
    return page_ids[max(num_old, num_begun, num_filled) :]


def _table(page_ids: Sequence[Ids]) -> Ids:
    table_Bp = np.zeros((len(page_ids), max(map(len, page_ids))), dtype=np.int32)
    for row, ids in enumerate(page_ids):
        table_Bp[row, : len(ids)] = ids
    return table_Bp
