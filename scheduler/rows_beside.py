"""What those who decode make of a prompt's chunks, in the mean over its microbatches. Pure.

They make microbatches longer, or, where microbatches are filled up to a slot, chunks shorter and so
more.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler.latency_model import PipelineLatency, Work

_ROWS_FACTOR = 2.0
"""A slot with rows is at least so many times as long as they are: half of it is for chunks."""
_LEAST_SHARE = 0.125
"""Rows leave a chunk no less than this of what it would be."""
_ALIKE = 1 / 64
"""Rows that change a microbatch's time by less than this are no reason to look at all anew."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowsBeside:
    """Decode rows in the microbatches of a prompt."""

    group: Work
    """Rows of a microbatch that has any."""
    share: float
    """Of all microbatches, those that have some; in [0, 1]."""
    shorten_chunks: bool
    """Whether chunks make room for them; else microbatches get longer."""

    @classmethod
    def of(cls, groups: Sequence[Work], *, depth: int, shorten_chunks: bool) -> RowsBeside:
        """Let groups that decode take turns.

        One whose step is in flight rides again when its result is in, which is when so many
        microbatches have been sent as are in flight together: depth >= 1.
        """
        if not groups:
            return NO_ROWS
        num_groups = len(groups)
        mean = Work(
            num_rows=-(-sum(group.num_rows for group in groups) // num_groups),
            row_tokens=sum(group.row_tokens for group in groups) // num_groups,
        )
        share = min(num_groups / depth, 1.0)
        return cls(group=mean, share=share, shorten_chunks=shorten_chunks)

    def is_like(self, other: RowsBeside, latency: PipelineLatency) -> bool:
        """Say whether microbatches take about as long beside these rows as beside others."""
        own_ms, other_ms = (
            each.share * max([stage.grows_ms(each.group) for stage in latency.stages])
            for each in (self, other)
        )
        least_ms = latency.microbatch_ms(Work()) + min(own_ms, other_ms)
        return abs(own_ms - other_ms) <= _ALIKE * least_ms

    def sent_ms(self, chunk: Work, latency: PipelineLatency) -> float:
        """Return the time of a microbatch with a chunk that was sent, and rows if it has some."""
        alone_ms = latency.microbatch_ms(chunk)
        return alone_ms + self._rows_ms(chunk, alone_ms, latency)

    def planned_ms(self, chunk: Work, latency: PipelineLatency) -> float:
        """Return the time that what was planned as one chunk takes beside rows."""
        alone_ms = latency.microbatch_ms(chunk)
        rows_ms = self._rows_ms(chunk, alone_ms, latency)
        if not (self.shorten_chunks and rows_ms):
            return alone_ms + rows_ms
        paid_ms = latency.microbatch_ms(Work())
        grows_ms = alone_ms - paid_ms
        slot_ms = max(alone_ms, _ROWS_FACTOR * rows_ms)
        left_ms = max(slot_ms - rows_ms - paid_ms, _LEAST_SHARE * grows_ms)
        return slot_ms * grows_ms / left_ms if left_ms > 0 else slot_ms

    def _rows_ms(self, chunk: Work, alone_ms: float, latency: PipelineLatency) -> float:
        """Return what rows add to a chunk's time, in the mean over all microbatches."""
        if not self.share:
            return 0.0
        return self.share * (latency.microbatch_ms(chunk + self.group) - alone_ms)


NO_ROWS = RowsBeside(group=Work(), share=0.0, shorten_chunks=False)
"""Nobody decodes."""
