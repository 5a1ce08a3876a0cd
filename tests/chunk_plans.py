"""Plans of chunks to compare: their sizes, their finish, and the best there is by trying all."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

import numpy as np

from scheduler.chunk_dynamic import DynamicChunks
from scheduler.chunking import FixedChunks
from scheduler.latency_model import PipelineLatency
from scheduler.pipeline_time import plan_finish_ms


def sizes(start: int, ends: Sequence[int]) -> list[int]:
    """Return the tokens of each chunk."""
    return [end - begin for begin, end in itertools.pairwise((start, *ends))]


def finish_ms(latency: PipelineLatency, start: int, ends: Sequence[int], repeats: int = 1) -> float:
    """Return when the pipeline is through, for one prompt or the same several times in a row."""
    borders = np.array([start, *ends], dtype=np.float64)
    return plan_finish_ms(latency, np.tile(borders[:-1], repeats), np.tile(borders[1:], repeats))


def least_finish_ms(latency: PipelineLatency, start: int, end: int, align: int) -> float:
    """Return the finish of the best of all plans with these borders; for a few cells only."""
    inner = range((start // align + 1) * align, end, align)
    return min(
        finish_ms(latency, start, (*borders, end))
        for count in range(len(inner) + 1)
        for borders in itertools.combinations(inner, count)
    )


def rivals(
    latency: PipelineLatency, start: int, end: int, chunk_sizes: Sequence[int], page_tokens: int
) -> Iterator[tuple[str, Sequence[int]]]:
    """Yield plans of the other strategies over a grid of what their users tune."""
    for size in chunk_sizes:
        yield f"fixed {size}", FixedChunks(size).cut(start, end)
        for smooth_factor in (0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 1.0):
            dynamic = DynamicChunks.of_pipeline(
                latency,
                chunk_tokens=size,
                page_tokens=page_tokens,
                smooth_factor=smooth_factor,
                context_tokens=None,
            )
            yield f"dynamic {size} {smooth_factor}", dynamic.cut(start, end)
