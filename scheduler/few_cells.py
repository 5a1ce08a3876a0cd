"""The best plan of a prompt of few cells: of all that there are. Pure.

Ten cells can be cut in 512 ways; looked at side by side they take less time than any search, and
links, the in-flight window and sizes count exactly.
"""

from __future__ import annotations

import math

import numpy as np

from scheduler.chunk_reach import ChunkReach
from scheduler.latency_model import FloatArray, IntArray
from scheduler.prompt_cuts import Range
from scheduler.slot_plan import SlotPlan
from scheduler.windowed_pipeline import WindowedPipeline

_MAX_CELLS = 10
_ROUNDING = 1e-12
"""A plan must be sooner by this ratio than one of fewer chunks."""


def has_few_cells(reach: ChunkReach, span: Range) -> bool:
    """Say whether all plans of a prompt can be looked at."""
    start, end = span
    return -(-end // reach.align_tokens) - start // reach.align_tokens <= _MAX_CELLS


def best_of_all(
    pipeline: WindowedPipeline, reach: ChunkReach, span: Range, max_slot_ms: float
) -> SlotPlan:
    """Return the plan that is through first, of the fewest chunks of those that are alike.

    Args:
        pipeline: what judges.
        reach: which borders there can be, and what slots are.
        span: not empty, of few cells.
        max_slot_ms: what a chunk takes at most, unless it is of one cell.

    """
    starts, stops, num_chunks = _all_cuts(reach.align_tokens, span)
    is_chunk = np.arange(stops.shape[1]) < num_chunks[:, np.newaxis]
    slots_ms = np.where(is_chunk, reach.chunks_ms(starts, stops), 0.0)
    limit_ms = max(max_slot_ms, reach.least_ms) * (1 + _ROUNDING)
    is_cell = (stops - 1) // reach.align_tokens == starts // reach.align_tokens
    is_held = (slots_ms <= limit_ms) & (stops - starts <= reach.max_chunk_tokens)
    kept = np.flatnonzero((is_held | is_cell | ~is_chunk).all(axis=1))
    finish_ms = _finish_ms(pipeline, starts[kept], stops[kept], num_chunks[kept])
    first = int(np.flatnonzero(finish_ms <= finish_ms.min() * (1 + _ROUNDING))[0])
    best = kept[first]
    ends = stops[best, : num_chunks[best]]
    return SlotPlan(
        slot_ms=float(slots_ms[best].max()),
        finish_ms=float(finish_ms[first]),
        borders=(np.concatenate([[float(span[0])], ends]),),
    )


def _all_cuts(align_tokens: int, span: Range) -> tuple[FloatArray, FloatArray, IntArray]:
    """Return starts and ends of the chunks of all plans, [plans, cells], and how many each has.

    Fewest chunks first. Behind a plan's last chunk are empty ones.
    """
    start, end = span
    inner = np.arange((start // align_tokens + 1) * align_tokens, end, align_tokens, dtype=float)
    plans = np.arange(1 << len(inner))[:, np.newaxis]
    is_cut = (plans >> np.arange(len(inner))) & 1 == 1
    num_chunks = is_cut.sum(axis=1) + 1
    order = np.argsort(num_chunks, kind="stable")
    cuts = np.sort(np.where(is_cut[order], inner, float(end)), axis=1)
    stops = np.concatenate([cuts, np.full((len(cuts), 1), float(end))], axis=1)
    starts = np.concatenate([np.full((len(cuts), 1), float(start)), cuts], axis=1)
    return starts, stops, num_chunks[order]


def _finish_ms(
    pipeline: WindowedPipeline, starts: FloatArray, stops: FloatArray, num_chunks: IntArray
) -> FloatArray:
    """Return when each plan's last chunk leaves, as scheduler.window_time has it."""
    stages, link = pipeline.latency.stages, pipeline.link
    times_ms = {stage: stage.chunks_ms(starts, stops) for stage in set(stages)}
    busy_ms = (stops - starts) * link.ms_per_token
    window = pipeline.window or math.inf
    free_ms = np.zeros((len(stages), len(starts)))
    sent_ms = np.zeros_like(free_ms)
    left_ms: list[FloatArray] = []
    for chunk in range(stops.shape[1]):
        arrived_ms = left_ms[chunk - int(window)] if chunk >= window else np.zeros(len(starts))
        for index, stage in enumerate(stages):
            free_ms[index] = np.maximum(free_ms[index], arrived_ms) + times_ms[stage][:, chunk]
            sent_ms[index] = np.maximum(free_ms[index], sent_ms[index]) + busy_ms[:, chunk]
            arrived_ms = sent_ms[index] + link.latency_ms
        left_ms.append(free_ms[-1].copy())
    finish_ms: FloatArray = np.stack(left_ms)[num_chunks - 1, np.arange(len(starts))]
    return finish_ms
