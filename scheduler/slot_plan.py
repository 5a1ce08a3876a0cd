"""How several prompts are cut to one slot. Plain values."""

from __future__ import annotations

import dataclasses

from scheduler.latency_model import FloatArray

Ends = tuple[int, ...]
"""Of a prompt's chunks: ascending, the last is its end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SlotPlan:
    """How several prompts are cut to one slot."""

    slot_ms: float
    """Longest chunk on the slowest stage."""
    finish_ms: float
    """When the last chunk leaves the last stage, the prompts entering one after the other."""
    borders: tuple[FloatArray, ...]
    """Of each prompt's chunks: ascending whole numbers, from its start to its end."""

    @property
    def ends(self) -> tuple[Ends, ...]:
        """Where each prompt's chunks end."""
        ends = {id(own): tuple(own[1:].astype(int).tolist()) for own in self.borders}
        return tuple(ends[id(own)] for own in self.borders)

    @property
    def num_chunks(self) -> int:
        """Chunks of all prompts."""
        return sum(len(own) - 1 for own in self.borders)
