"""Ways to cut one prompt: to a slot, evenly, or in given shares of its time. Pure.

Each returns the borders of chunks, [chunks + 1], from the prompt's start to its end.
"""

from __future__ import annotations

import numpy as np

from scheduler.border_walk import Steps, walk_back, walk_on
from scheduler.chunk_reach import ChunkReach
from scheduler.latency_model import FloatArray, StageLatency

_FLAT = 1e-9
"""With less relative growth of a token's time over a prompt than this, it counts as constant."""

Range = tuple[int, int]
"""[start, end) of what is left of a prompt."""


def cut_from_the_end(reach: ChunkReach, span: Range, slot_ms: float) -> FloatArray:
    """Return the fewest chunks of a slot at most, each beginning as early as can be."""
    borders = [*walk_back(reach, span, slot_ms), span[0]]
    return np.array(borders[::-1], dtype=np.float64)


def cut_at_least(
    reach: ChunkReach, span: Range, tokens: int, slot_ms: float, grading: float = 0.0
) -> FloatArray:
    """Return borders of chunks of a slot and, from where it holds less, of so many tokens.

    Args:
        reach: which borders there can be.
        span: not empty.
        tokens: whole cells, at most what a chunk may have.
        slot_ms: what the first chunks may take, and longer ones if they are graded.
        grading: of the first chunks, from equal times at 0 to equal sizes at 1.

    """
    start, end = span
    first = walk_on(reach, span, slot_ms, tokens)
    if grading and len(first) > 1:
        shares = np.ones(len(first) - 1)
        graded = cut_in_shares(reach, (start, first[-1]), shares, grading)
        if graded is not None:
            return np.concatenate([graded, _alike(reach, first[-1], end, tokens)])
    return np.concatenate([first, _alike(reach, first[-1], end, tokens)], dtype=np.float64)


def _alike(reach: ChunkReach, start: int, end: int, tokens: int) -> FloatArray:
    """Return the ends of chunks of one size, but for the first and the last; none if all is cut."""
    if start == end:
        return np.array([])
    border = (start + tokens) // reach.align_tokens * reach.align_tokens
    return np.concatenate([np.arange(border, end, tokens), [end]], dtype=np.float64)


def even_out(reach: ChunkReach, earliest: FloatArray) -> FloatArray:
    """Move earliest borders out towards equal times; no chunk is longer than the longest was."""
    span = start, end = int(earliest[0]), int(earliest[-1])
    cap_ms = float(reach.chunks_ms(earliest[:-1], earliest[1:]).max())
    align = reach.align_tokens
    num_inner = len(earliest) - 2
    shares = np.arange(1, num_inner + 1) / (num_inner + 1)
    wanted = np.round(graded_cuts(reach.slowest(start, end), span, shares) / align) * align
    last = (end - 1) // align * align
    latest = last - np.arange(num_inner)[::-1] * align
    steps = Steps(reach, span, cap_ms, num_inner)
    limits = np.array([earliest[1:-1], wanted, latest]).astype(int)
    borders = [start]
    for least, cut, most in limits.T.tolist():
        before = borders[-1]
        low = max(least, (before // align + 1) * align)
        borders.append(max(low, min(cut, steps.latest_end(before), most)))
    return np.array([*borders, end], dtype=np.float64)


def cut_in_shares(
    reach: ChunkReach, span: Range, shares: FloatArray, grading: float
) -> FloatArray | None:
    """Return chunks that take these shares, at the nearest borders; fewer if some coincide.

    None if one would be longer than a chunk may be.
    """
    start, end = span
    done = np.cumsum(shares)
    cuts = graded_cuts(reach.slowest(start, end), span, done[:-1] / done[-1], grading)
    wanted = np.round(cuts / reach.align_tokens) * reach.align_tokens
    inner = wanted[(wanted > start) & (wanted < end)]
    borders = np.concatenate([[start], inner, [end]])
    lengths = np.diff(borders)
    if lengths.max() > reach.max_chunk_tokens:
        return None
    return borders if lengths.min() > 0 else np.concatenate([borders[:-1][lengths > 0], [end]])


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
