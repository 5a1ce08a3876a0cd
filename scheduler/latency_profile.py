"""Which work a worker times at start-up, within a budget of time. Pure.

The largest chunk runs first, untimed, for what a first run compiles and allocates. Then chunks
without a prefix, from long to short, decode rows, and chunks behind ever longer prefixes; all again
while time is left, so that the fit sees what varies. Work that may not fit in what is left is
skipped, and what is smaller still runs.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Generator, Iterable

from scheduler.latency_fit import LatencyPoint
from scheduler.latency_model import Work

_NUM_SIZES = 6
_NUM_ROUNDS = 3
_LEAST_CHUNK_TOKENS = 16
_PREFIX_RATIOS = (16, 4, 1)
_ROW_RATIOS = (1, 4, 16)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileLimits:
    """What a worker can run."""

    max_chunk_tokens: int
    """>= 1."""
    max_prefix_tokens: int
    """Tokens in pages before the chunk, or before each row in the same pages; >= 0."""
    max_rows: int
    """Decode rows of a microbatch; 0 times none."""
    budget_ms: float
    """Wall time of all runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileShape:
    """One microbatch to time: a chunk or decode rows, all behind the same prefix."""

    prefix_tokens: int
    chunk_tokens: int = 0
    """0 if it is decode rows."""
    num_rows: int = 0
    """0 if it is a chunk."""

    @property
    def work(self) -> Work:
        """What it asks of the stage."""
        if self.num_rows:
            return Work.of_rows([self.prefix_tokens + 1] * self.num_rows)
        return Work.of_chunk(self.prefix_tokens, self.prefix_tokens + self.chunk_tokens)


def profile_shapes(
    limits: ProfileLimits,
) -> Generator[ProfileShape, float, tuple[LatencyPoint, ...]]:
    """Yield what to run next and be sent its time in ms; return the points to fit.

    The sum of all times stays within the budget, but for the first run, as long as work that
    reaches no further takes no longer.
    """
    largest = ProfileShape(prefix_tokens=0, chunk_tokens=limits.max_chunk_tokens)
    times_ms = {largest: (yield largest)}
    left_ms = limits.budget_ms - times_ms[largest]
    points: list[LatencyPoint] = []
    for shape in [*_shapes(limits)] * _NUM_ROUNDS:
        if _most_ms(shape, times_ms) > left_ms:
            continue
        ms = yield shape
        left_ms -= ms
        times_ms[shape] = ms
        points.append(LatencyPoint(work=shape.work, ms=ms))
    return tuple(points)


def _shapes(limits: ProfileLimits) -> Iterable[ProfileShape]:
    """Yield what to run in a round."""
    sizes = [limits.max_chunk_tokens >> i for i in range(_NUM_SIZES)]
    sizes = [sizes[0], *(size for size in sizes[1:] if size >= _LEAST_CHUNK_TOKENS)]
    prefixes = sorted({limits.max_prefix_tokens // ratio for ratio in _PREFIX_RATIOS} - {0})
    rows = sorted({limits.max_rows // ratio for ratio in _ROW_RATIOS} - {0}, reverse=True)
    for size in sizes:
        yield ProfileShape(prefix_tokens=0, chunk_tokens=size)
    for num_rows in rows:
        for prefix in (*prefixes[:1], *prefixes[1:][-1:]):
            yield ProfileShape(prefix_tokens=prefix, num_rows=num_rows)
    for size in sizes:
        for prefix in prefixes:
            yield ProfileShape(prefix_tokens=prefix, chunk_tokens=size)


def _most_ms(shape: ProfileShape, times_ms: dict[ProfileShape, float]) -> float:
    """Return what a shape can take at most, by chunks that ran and were not shorter.

    A chunk's time grows with its prefix no faster than its pairs do. Decode rows are taken for as
    many tokens of a chunk.
    """
    if shape in times_ms:
        return times_ms[shape]
    tokens = shape.chunk_tokens + shape.num_rows
    bounds_ms = (
        ms * max((2 * shape.prefix_tokens + size) / (2 * ran.prefix_tokens + size), 1.0)
        for ran, ms in times_ms.items()
        if (size := ran.chunk_tokens) >= tokens
    )
    return min(bounds_ms, default=math.inf)
