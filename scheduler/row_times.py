"""What decode rows add to a microbatch: by the latency model, or counted without one. Pure."""

from __future__ import annotations

import dataclasses
from typing import Self

from scheduler.latency_model import PipelineLatency, Work

_NOISE = 1 / 16
"""Share of a step's time that a model cannot tell."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RowTimes:
    """Time grows with rows and with the tokens that they look at, on the stage slowest with it."""

    terms: tuple[tuple[float, float], ...] = ((1.0, 0.0),)
    """Of each stage that can be the slowest: for a row, and for a token that a row looks at."""
    empty: float = 0.0
    """Of a microbatch without rows, >= 0."""
    noise: float = 0.0
    """Share of a microbatch's time up to which differences do not matter, >= 0."""

    @classmethod
    def of(cls, latency: PipelineLatency | None) -> Self:
        """Take the terms of a latency; count rows if it has none for them."""
        stages = latency.rhythm() if latency else ()
        terms = dict.fromkeys((stage.ms_per_row, stage.ms_per_row_token) for stage in stages)
        if latency is None or not any(max(pair) for pair in terms):
            return cls()
        return cls(terms=tuple(terms), empty=latency.microbatch_ms(Work()), noise=_NOISE)

    def time(self, num_rows: int, num_tokens: int) -> float:
        """Return what rows that look at so many tokens together add; 0 for none."""
        return max([row * num_rows + token * num_tokens for row, token in self.terms])

    def is_longer(self, one: float, other: float) -> bool:
        """Say whether rows that add one make a step longer than others, as far as can be told."""
        return one - other > self.noise * (self.empty + one)
