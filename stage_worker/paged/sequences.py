"""Runs of sequences on the device: what attention gets beside queries, keys and values.

Lengths are there twice, because kernels read them on the device and plain torch needs them on the
host; nothing is ever copied back.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from stage_worker.kernels.reference import PagedContexts, QueryRows
from stage_worker.paged.plan import RunPlan
from stage_worker.paged.upload import Upload


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Sequences whose queries lie behind one another; see RunPlan."""

    rows: slice
    """Their rows in the activation."""
    row_counts: tuple[int, ...]
    key_counts: tuple[int, ...]
    query_rows: QueryRows
    contexts: PagedContexts

    def own(self, rows_T: torch.Tensor) -> torch.Tensor:
        """Return the sequences' rows of a tensor with those of the activation."""
        return rows_T if len(rows_T) == self.num_rows else rows_T[self.rows]

    @property
    def num_rows(self) -> int:
        """Query rows of all sequences."""
        return sum(self.row_counts)

    @property
    def is_decode(self) -> bool:
        """Whether every sequence has one query."""
        return self.query_rows.longest == 1


class PendingSequences:
    """A run whose arrays are on their way to the device."""

    def __init__(self, plan: RunPlan, upload: Upload) -> None:
        self._plan = plan
        begins_B1 = np.cumsum((0, *plan.row_counts), dtype=np.int32)
        self._begins = upload.add(begins_B1)
        self._num_keys = upload.add(np.array(plan.key_counts, dtype=np.int32))
        self._table = upload.add(plan.page_table_Bp)

    def arrived(self, tensors: list[torch.Tensor]) -> Sequences:
        """Return the run, from what the upload became."""
        plan = self._plan
        return Sequences(
            rows=slice(plan.first_row, plan.first_row + plan.num_rows),
            row_counts=plan.row_counts,
            key_counts=plan.key_counts,
            query_rows=QueryRows(begins_B1=tensors[self._begins], longest=max(plan.row_counts)),
            contexts=PagedContexts(
                page_table_Bp=tensors[self._table], num_keys_B=tensors[self._num_keys]
            ),
        )
