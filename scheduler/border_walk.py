"""Walks from border to border of a prompt, each chunk as long as a cap of its time allows. Pure.

Alone a step takes about as long as beside some dozens of others (numpy). So where chunks are of few
cells and many, the steps from all borders that there are get computed at once, and the walk only
looks up those that it takes. It ends up at the same borders.
"""

from __future__ import annotations

import numpy as np

from scheduler.chunk_reach import ChunkReach

_MAX_STEP_CELLS = 40
"""With longer chunks, steps from all borders would take more than those that are walked."""
_LEAST_STEPS = 48
"""With fewer of them to go, too."""
_BLOCK_CELLS = 1024
"""Steps that are computed at once where the walk may end soon."""


class Steps:
    """How far chunks reach from the borders of one prompt, for a walk of about num_steps."""

    def __init__(
        self, reach: ChunkReach, span: tuple[int, int], cap_ms: float, num_steps: int
    ) -> None:
        """Look at chunks of [start, end), not empty."""
        start, end = span
        self._reach = reach
        self._cap_ms = cap_ms
        self._align = reach.align_tokens
        self._first = -(-start // self._align)
        self._ends: list[int] = []
        """Of chunks from the aligned borders, in order; empty if each is computed when asked."""
        if _is_dense(end - start, (end - start) / max(num_steps, 1), self._align):
            borders = np.arange(self._first * self._align, end, self._align, dtype=np.float64)
            self._ends = reach.latest_ends(borders, cap_ms).astype(np.int64).tolist()

    def latest_end(self, start: int) -> int:
        """Return the greatest border that a chunk from start, in the prompt, reaches."""
        if not self._ends or start % self._align:
            return self._reach.latest_end(start, self._cap_ms)
        return self._ends[start // self._align - self._first]


def walk_back(reach: ChunkReach, span: tuple[int, int], cap_ms: float) -> list[int]:
    """Return the ends of the fewest chunks, each beginning as early as can be: last ones first."""
    start, end = span
    align = reach.align_tokens
    ends = [end]
    while (begin := reach.earliest_start(start, ends[-1], cap_ms)) > start:
        step_tokens = ends[-1] - begin
        ends.append(begin)
        if _is_dense(begin - start, step_tokens, align):
            break
    else:
        return ends
    first = start // align
    borders = np.arange((first + 1) * align, ends[-1] + 1, align, dtype=np.float64)
    starts = reach.earliest_starts(start, borders, cap_ms).astype(np.int64).tolist()
    begin = starts[ends[-1] // align - first - 1]
    while begin > start:
        ends.append(begin)
        begin = starts[begin // align - first - 1]
    return ends


def walk_on(
    reach: ChunkReach, span: tuple[int, int], cap_ms: float, least_tokens: int
) -> list[int]:
    """Return the borders, from start on, of the longest chunks; until they are below the least."""
    start, end = span
    align = reach.align_tokens
    borders = [start]
    while borders[-1] < end:
        reached = reach.latest_end(borders[-1], cap_ms)
        step_tokens = reached - borders[-1]
        if step_tokens < least_tokens:
            return borders
        borders.append(min(reached, end))
        if _is_dense(end - borders[-1], step_tokens, align):
            break
    else:
        return borders
    while borders[-1] < end:
        block = borders[-1]
        starts = np.arange(block, min(block + _BLOCK_CELLS * align, end), align, dtype=np.float64)
        ends = reach.latest_ends(starts, cap_ms).astype(np.int64).tolist()
        while (cell := (borders[-1] - block) // align) < len(ends) and borders[-1] < end:
            if ends[cell] < borders[-1] + least_tokens:
                return borders
            borders.append(min(ends[cell], end))
    return borders


def _is_dense(left_tokens: int, step_tokens: float, align_tokens: int) -> bool:
    """Say whether steps from all borders are computed sooner than those that will be walked."""
    return (
        step_tokens <= _MAX_STEP_CELLS * align_tokens and left_tokens >= _LEAST_STEPS * step_tokens
    )
