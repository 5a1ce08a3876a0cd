"""The slot of chunks of equal time, without a search. Pure.

With n chunks of the slot that grow by so much work together, the whole takes work + n * paid +
fills * slot: least if the slot is paid + sqrt(paid * work / fills).
"""

from __future__ import annotations

import dataclasses
import math
from typing import Self

from scheduler.chunk_optimal import OptimalChunks
from scheduler.chunk_reach import constant_ms


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EvenSlot:
    """What it depends on beside the work."""

    paid_ms: float
    """What a chunk takes beside what grows."""
    least_ms: float
    """Of a chunk of hardly anything."""
    num_fills: float
    """Time of a chunk on all stages but the slowest, in slots."""
    full_ms: float
    """Slot from which on microbatches hardly wait for the window; 0 if they never do."""
    window: float
    """Microbatches in flight at most, >= 1."""

    @classmethod
    def of(cls, strategy: OptimalChunks, max_tokens: int) -> Self:
        """Look at the strategy's pipeline, with chunks of max_tokens at most."""
        chunk_ms = [stage.chunk_ms(0, max_tokens) for stage in strategy.latency.stages]
        num_fills = sum(chunk_ms) / max(chunk_ms) - 1
        return cls(
            paid_ms=constant_ms(strategy.reach.slowest(0, max_tokens)),
            least_ms=strategy.reach.least_ms,
            num_fills=num_fills,
            full_ms=strategy.pipeline.full_ms(num_fills),
            window=strategy.window or math.inf,
        )

    def slot_ms(self, work_ms: float, cell_ms: float) -> float:
        """Return the slot for some work, all being one long prompt.

        No shorter than lets chunks wait for the window, unless that holds them all at once. At
        least a cell more than the least time, or rounding down to cells would leave chunks of less
        work than the floor's time holds.
        """
        if self.num_fills <= 0:
            return math.inf
        slot_ms = self.paid_ms + math.sqrt(self.paid_ms * work_ms / self.num_fills)
        if self.full_ms:
            slot_ms = max(slot_ms, min(self.full_ms, self.paid_ms + work_ms / self.window))
        return max(slot_ms, self.least_ms + cell_ms)
