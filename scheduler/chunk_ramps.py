"""Shorter chunks at the ends of a plan, for pipelines whose first or last stages are faster. Pure.

Faster stages before the slowest fill it sooner if the first chunks are short. The slowest never
waits as long as each chunk is longer than the first by at most what the faster ones have gained on
it so far; so chunks grow to the slot at that rate. Behind the slowest it is the same from the end.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

import numpy as np

from scheduler.latency_model import FloatArray, PipelineLatency

_AS_SLOW = 0.9
"""A stage is one of the slowest from this ratio of the slowest one's time on."""
_FIRST_SHARES = (0.7, 0.5, 0.35, 0.2)
"""What the first chunk may take, of the slot."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ramps:
    """How fast chunks may grow at the start and shrink at the end; None where that gains nothing.

    In shares of the slot: by the rate times the sum of the chunks before.
    """

    up: float | None
    down: float | None

    @classmethod
    def of_pipeline(cls, latency: PipelineLatency, start: int, end: int) -> Ramps:
        """Compare the stages by the time of one chunk."""
        times_ms = np.array([stage.chunk_ms(start, end) for stage in latency.stages])
        slowest = np.flatnonzero(times_ms >= _AS_SLOW * times_ms.max())
        before, behind = times_ms[: slowest[0]], times_ms[slowest[-1] + 1 :]
        return cls(up=_rate(before, times_ms.max()), down=_rate(behind, times_ms.max()))

    def at(self, *, is_first: bool, is_last: bool) -> Ramps:
        """Return the ramps of one of several prompts in a row."""
        return Ramps(up=self.up if is_first else None, down=self.down if is_last else None)

    def shares(self, num_chunks: int) -> Iterator[FloatArray]:
        """Yield what each of about so many chunks takes of the slot, for several steepnesses."""
        ups = [self._ramp(self.up, first, num_chunks) for first in _FIRST_SHARES]
        downs = [self._ramp(self.down, first, num_chunks)[::-1] for first in _FIRST_SHARES]
        if self.up is not None:
            yield from ups
        if self.down is not None:
            yield from downs
        if self.up is not None and self.down is not None:
            yield from (np.minimum(up, down) for up, down in zip(ups, downs, strict=True))

    @staticmethod
    def _ramp(rate: float | None, first: float, num_chunks: int) -> FloatArray:
        """Return shares that grow from the first to 1."""
        shares = np.ones(num_chunks)
        if rate is None:
            return shares
        done = 0.0
        for i in range(num_chunks):
            shares[i] = min(first + rate * done, 1.0)
            done += shares[i]
            if shares[i] == 1.0:
                break
        return shares


def _rate(times_ms: FloatArray, slowest_ms: float) -> float | None:
    """Return how fast chunks may grow for some faster stages; None if there is none."""
    if not len(times_ms) or not times_ms.sum():
        return None
    return float((slowest_ms - times_ms.mean()) / times_ms.sum())
