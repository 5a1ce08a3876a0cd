"""Ways to cut one prompt: to a slot, evenly, or in given shares of its time. Pure."""

from __future__ import annotations

import itertools

import numpy as np

from scheduler.border_walk import Steps, walk_back, walk_on
from scheduler.chunk_reach import ChunkReach
from scheduler.latency_model import FloatArray, StageLatency

_FLAT = 1e-9
"""With less relative growth of a token's time over a prompt than this, it counts as constant."""

Range = tuple[int, int]
"""[start, end) of what is left of a prompt."""
Ends = tuple[int, ...]
"""Of its chunks: ascending, the last is its end."""


def cut_from_the_end(reach: ChunkReach, span: Range, slot_ms: float) -> Ends:
    """Return the fewest chunks of a slot at most, each beginning as early as can be."""
    ends = walk_back(reach, span, slot_ms)
    ends.reverse()
    return tuple(ends)


def cut_at_least(
    reach: ChunkReach, span: Range, tokens: int, slot_ms: float, grading: float = 0.0
) -> Ends:
    """Return chunks of a slot and, from where it holds less, of so many tokens.

    Args:
        reach: which borders there can be.
        span: not empty.
        tokens: whole cells, at most what a chunk may have.
        slot_ms: what the first chunks may take, and longer ones if they are graded.
        grading: of the first chunks, from equal times at 0 to equal sizes at 1.
    """
    start, end = span
    borders = walk_on(reach, span, slot_ms, tokens)
    first = tuple(borders[1:])
    if grading and first:
        shares = np.ones(len(first))
        first = cut_in_shares(reach, (start, first[-1]), shares, grading) or first
    border = (borders[-1] + tokens) // reach.align_tokens * reach.align_tokens
    return (*first, *range(border, end, tokens), end)[: None if borders[-1] < end else len(first)]


def even_out(reach: ChunkReach, span: Range, earliest: Ends) -> Ends:
    """Move earliest borders out towards equal times; no chunk is longer than the longest was."""
    start, end = span
    borders = np.array([start, *earliest], dtype=np.float64)
    cap_ms = float(reach.chunks_ms(borders[:-1], borders[1:]).max())
    align = reach.align_tokens
    num_inner = len(earliest) - 1
    shares = np.arange(1, num_inner + 1) / len(earliest)
    wanted = np.round(graded_cuts(reach.slowest(start, end), span, shares) / align) * align
    last = (end - 1) // align * align
    latest = last - np.arange(num_inner)[::-1] * align
    steps = Steps(reach, span, cap_ms, num_inner)
    ends = [start]
    for least, cut, most in zip(
        earliest[:-1], wanted.astype(int).tolist(), latest.tolist(), strict=True
    ):
        before = ends[-1]
        low = max(least, (before // align + 1) * align)
        ends.append(max(low, min(cut, steps.latest_end(before), most)))
    return (*ends[1:], end)


def cut_in_shares(
    reach: ChunkReach, span: Range, shares: FloatArray, grading: float
) -> Ends | None:
    """Return chunks that take these shares, at the nearest borders; fewer if some coincide.

    None if one would be longer than a chunk may be.
    """
    start, end = span
    done = np.cumsum(shares)
    cuts = graded_cuts(reach.slowest(start, end), span, done[:-1] / done[-1], grading)
    borders = np.unique(np.round(cuts / reach.align_tokens) * reach.align_tokens)
    inner = borders[(borders > start) & (borders < end)].astype(int).tolist()
    ends = (*inner, end)
    longest = max(stop - begin for begin, stop in itertools.pairwise((start, *ends)))
    return ends if longest <= reach.max_chunk_tokens else None


def graded_cuts(
    stage: StageLatency, span: Range, shares: FloatArray, grading: float = 0.0
) -> FloatArray:
    """Return where these shares, in (0, 1), of a prompt are done.

    Args:
        stage: whose time for tokens and pairs counts.
        span: not empty.
        shares: of the time if grading is 0, of the tokens if it is 1, of something between else.
        grading: in [0, 1].
    """
    start, end = span
    first = stage.ms_per_token + 2 * stage.ms_per_pair * start
    last = stage.ms_per_token + 2 * stage.ms_per_pair * end
    if last - first <= _FLAT * last:
        return start + (end - start) * shares
    power = 2 - grading
    at = (first**power + shares * (last**power - first**power)) ** (1 / power)
    cuts: FloatArray = start + (end - start) * (at - first) / (last - first)
    return cuts
