"""The batch sizes that decode steps are captured for. Pure.

A step of n rows is replayed as one of the least size that holds n; the rest of its rows is filler.
"""

from __future__ import annotations

import bisect
from collections.abc import Sequence

_DOUBLING = (1, 2, 4)
_STEP = 8
"""Between the sizes behind those; filler of one step at most costs the GPU next to nothing."""


def ladder(most_rows: int) -> tuple[int, ...]:
    """Return the sizes, ascending: 1, 2, 4, 8, 16, 24 and so on, and most_rows >= 1 itself."""
    steps = (*_DOUBLING, *range(_STEP, most_rows, _STEP))
    return (*(size for size in steps if size < most_rows), most_rows)


def fitting(sizes: Sequence[int], num_rows: int) -> int | None:
    """Return the least of ascending sizes that holds the rows; None if none does."""
    index = bisect.bisect_left(sizes, num_rows)
    return sizes[index] if index < len(sizes) else None
