"""Which microbatches a worker times at start-up, within a budget of time. Pure.

Chunks from short to long run first, untimed: first runs compile and allocate, and they tell how
long a chunk the budget allows. Then chunks without a prefix, from long to short, decode rows, and
chunks behind ever longer prefixes; again while there is time, so that the fit sees what varies.
Work that may not fit in what is left is skipped, and what is smaller still runs.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Generator, Iterable, Sequence

PLAN_VERSION = 2
"""Raised when other work is measured: kept profiles of another version are not used."""
_NUM_SIZES = 6
_NUM_ROUNDS = 3
_REPEAT_SHARE = 0.35
"""Of the budget: later rounds begin nothing behind it."""
_LONGEST_SHARE = 0.0625
"""Of the budget: no chunk is tried that seems to take more, so that a round fits."""
_FIRST_SHARE = 0.125
"""The same until there are _FEW_SIZES: without chunks of different lengths nothing is known."""
_FEW_SIZES = 3
_LEAST_CHUNK_TOKENS = 16
_PREFIX_RATIOS = (16, 4, 1)
_ROW_RATIOS = (1, 2, 4)
"""Fewer rows take another path than chunks and many rows, which no sum of terms describes."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileLimits:
    """What a worker may run."""

    max_chunk_tokens: int
    """>= 1."""
    max_prefix_tokens: int
    """Tokens in pages before a chunk, or before each decode row; >= 0."""
    max_rows: int
    """Decode rows of a microbatch; 0 times none."""
    budget_ms: float
    """Wall time of all runs."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileShape:
    """One microbatch to time: a chunk or decode rows, all behind prefixes of one length."""

    prefix_tokens: int
    chunk_tokens: int = 0
    """0 if it is decode rows."""
    num_rows: int = 0
    """0 if it is a chunk."""

    def __str__(self) -> str:
        what = f"{self.num_rows} decode rows" if self.num_rows else f"{self.chunk_tokens} tokens"
        return f"{what} behind {self.prefix_tokens}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfilePoint:
    """What one microbatch took."""

    shape: ProfileShape
    compute_us: int
    """>= 1."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProfileStep:
    """What to run next."""

    shape: ProfileShape
    is_timed: bool
    """Whether its time is a point; first runs are none."""
    progress: float
    """Share of the plan that is done or skipped, 0 <= progress <= 1."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """What a step took, and what is left."""

    ms: float
    left_ms: float
    """Of the budget, by the wall clock; may be below 0."""


def profile_steps(limits: ProfileLimits) -> Generator[ProfileStep, Timing, None]:
    """Yield what to run next and be sent what it took; ends when time or work does.

    What is timed fits in the time left, as long as work that reaches no further takes no longer.
    """
    sizes = _sizes(limits.max_chunk_tokens)
    num_all = len(sizes) + _NUM_ROUNDS * len(_shapes(limits, sizes))
    longest = yield from _climb(sizes, limits.budget_ms, num_all)
    shapes = _shapes(limits, [size for size in sizes if size <= longest.tokens])
    times_ms = {ProfileShape(prefix_tokens=0, chunk_tokens=longest.tokens): longest.timing.ms}
    left_ms = longest.timing.left_ms
    num_done = num_all - _NUM_ROUNDS * len(shapes)
    for index, shape in enumerate(_NUM_ROUNDS * shapes):
        kept_ms = 0.0 if index < len(shapes) else (1 - _REPEAT_SHARE) * limits.budget_ms
        if left_ms - _most_ms(shape, times_ms) < kept_ms:
            continue
        progress = (num_done + index) / num_all
        timing = yield ProfileStep(shape=shape, is_timed=True, progress=progress)
        times_ms[shape], left_ms = timing.ms, timing.left_ms


def spread(points: Iterable[ProfilePoint]) -> float:
    """Return how far repeated times of the same work lie apart, relative; the median of works."""
    by_shape: dict[ProfileShape, list[int]] = {}
    for point in points:
        by_shape.setdefault(point.shape, []).append(point.compute_us)
    ratios = [max(times) / min(times) - 1 for times in by_shape.values() if len(times) > 1]
    return statistics.median(ratios) if ratios else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Longest:
    """The longest chunk that the budget allows, and its last time."""

    tokens: int
    timing: Timing


def _climb(
    sizes: Sequence[int], budget_ms: float, num_all: int
) -> Generator[ProfileStep, Timing, _Longest]:
    """Run chunks from the shortest on, until the next one would take too long.

    A first run may have compiled something: what forbids the next chunk is its second run.
    """
    climbed = 0
    while True:
        tokens = sizes[-1 - climbed]
        for _ in range(2):
            shape = ProfileShape(prefix_tokens=0, chunk_tokens=tokens)
            timing = yield ProfileStep(shape=shape, is_timed=False, progress=climbed / num_all)
            longest = _Longest(tokens=tokens, timing=timing)
            if tokens == sizes[0]:
                return longest
            next_ms = timing.ms * sizes[-2 - climbed] / tokens
            share = _FIRST_SHARE if climbed + 1 < _FEW_SIZES else _LONGEST_SHARE
            if next_ms <= share * budget_ms:
                break
        else:
            return longest
        climbed += 1


def _sizes(max_chunk_tokens: int) -> list[int]:
    """Return the chunks to run, from long to short."""
    halved = [max_chunk_tokens >> i for i in range(1, _NUM_SIZES)]
    return [max_chunk_tokens, *(size for size in halved if size >= _LEAST_CHUNK_TOKENS)]


def _shapes(limits: ProfileLimits, sizes: Sequence[int]) -> list[ProfileShape]:
    """Return what to run in a round."""
    prefixes = sorted({limits.max_prefix_tokens // ratio for ratio in _PREFIX_RATIOS} - {0})
    rows = sorted({limits.max_rows // ratio for ratio in _ROW_RATIOS} - {0}, reverse=True)
    return [
        *(ProfileShape(prefix_tokens=0, chunk_tokens=size) for size in sizes),
        *(
            ProfileShape(prefix_tokens=prefix, num_rows=num_rows)
            for num_rows in rows
            for prefix in (*prefixes[:1], *prefixes[1:][-1:])
        ),
        *(
            ProfileShape(prefix_tokens=prefix, chunk_tokens=size)
            for size in sizes
            for prefix in prefixes
        ),
    ]


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
