"""What plans of fixed sizes and of the dynamic rule take at least, without cutting them. Pure.

No plan is through sooner than any path through it: the first chunk on the stages before the
slowest, then all chunks on that one, and one chunk on those behind it. What a path takes is summed
in closed form for a fixed size, and over pieces of the prompt for the dynamic rule.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from scheduler.chunk_dynamic import DynamicChunks
from scheduler.latency_model import FloatArray, PipelineLatency, StageLatency
from scheduler.least_ratios import LeastRatios

_NUM_PIECES = 64


class RuleBounds:
    """Bounds for one prompt, or several alike in a row."""

    def __init__(
        self, latency: PipelineLatency, span: tuple[int, int], align_tokens: int, repeats: int
    ) -> None:
        """Look at the prompt [start, end), not empty, start being a multiple of align_tokens."""
        self._start, self._end = span
        times_ms = [stage.chunk_ms(*span) for stage in latency.stages]
        slowest = times_ms.index(max(times_ms))
        self._before = latency.stages[:slowest]
        self._slowest = latency.stages[slowest]
        self._behind = latency.stages[slowest + 1 :]
        self._repeats = repeats
        self._align = align_tokens
        self._ratios = {
            stage: LeastRatios(stage.size_ratios, align_tokens, self._end - self._start)
            for stage in (self._slowest, latency.stages[-1])
            if stage.size_ratios
        }

    def fixed_ms(self, sizes: FloatArray) -> FloatArray:
        """Return the bound of each size, whole cells; behind the slowest as the last whole one."""
        start, end = np.full_like(sizes, self._start), np.full_like(sizes, self._end)
        num_whole = np.ceil((end - start) / sizes) - 1
        is_cut = num_whole > 0
        rest = start + num_whole * sizes
        last_whole = np.maximum(rest - sizes, start)
        stage = self._slowest
        own_ms = _own_ms(stage, start, rest)
        if stage.size_ratios:
            own_ms *= stage.size_ratios.of_sizes(sizes)
        prefix_ms = stage.ms_per_prefix_token * (start + last_whole) / 2
        whole_ms = _paid_ms(stage, num_whole, own_ms + num_whole * prefix_ms)
        rest_ms = stage.chunks_ms(rest, end)
        last_ms = self._behind[-1].chunks_ms(rest, end) if self._behind else rest_ms
        fill_ms = _sum_ms(self._before, start, np.minimum(start + sizes, end))
        fill_ms += _sum_ms(self._behind, last_whole, np.where(is_cut, rest, end))
        own_rest_ms = (self._repeats - 1) * rest_ms + np.where(is_cut, last_ms, rest_ms)
        bounds_ms: FloatArray = self._repeats * whole_ms + own_rest_ms + fill_ms
        return bounds_ms

    def dynamic_ms(self, rule: DynamicChunks, smooth_factors: Sequence[float]) -> FloatArray:
        """Return the bound of each factor, for a rule of whole cells: the greatest of three paths.

        Behind the slowest as a chunk of hardly anything, on all stages as the first one or, if the
        last is as slow as any, as the last whole one.
        """
        first = np.array([self._start]), np.array([min(self._start + rule.chunk_tokens, self._end)])
        first_ms = _sum_ms(self._before, *first)
        last = self._behind[-1] if self._behind else self._slowest
        least_ms = sum(stage.edge_ms + stage.floor_ms for stage in self._behind)
        pieces = self._pieces(rule, smooth_factors)
        on_slowest_ms = self._least_sums_ms(self._slowest, *pieces)
        on_last_ms = self._least_sums_ms(last, *pieces) if self._behind else on_slowest_ms
        behind_ms = _sum_ms(self._behind, *first)
        one_ms = self._slowest.chunks_ms(*first) - last.chunks_ms(*first)
        before_last_ms = (self._repeats - 1) * on_slowest_ms
        ends_ms = before_last_ms + np.maximum(
            on_slowest_ms + least_ms, on_last_ms + behind_ms + one_ms
        )
        whole = max(self._end - 2 * rule.chunk_tokens, self._start) + 0 * pieces[1][:, -1]
        if last == self._slowest and rule.chunk_tokens < self._end - self._start:
            whole_ms = _sum_ms(self._behind, whole, whole + pieces[1][:, -1])
            ends_ms = np.maximum(ends_ms, before_last_ms + on_slowest_ms + whole_ms)
        bounds_ms: FloatArray = ends_ms + first_ms
        return bounds_ms

    def first_ms(self, sizes: FloatArray) -> FloatArray:
        """Return what plans take at least whose first chunk has such a size, and none more."""
        start = np.full_like(sizes, self._start)
        first = np.minimum(start + sizes, self._end)
        stages = (*self._before, self._slowest, *self._behind)
        others, last = stages[:-1], stages[-1]
        num_chunks = (self._end - start) / sizes
        own_ms = np.full_like(sizes, float(_own_ms(last, self._start, self._end)))
        if last in self._ratios:
            own_ms *= self._ratios[last].least
        own_ms = _paid_ms(last, num_chunks, own_ms)
        bounds_ms: FloatArray = self._repeats * own_ms + _sum_ms(others, start, first)
        return bounds_ms

    def _pieces(
        self, rule: DynamicChunks, smooth_factors: Sequence[float]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return borders of pieces of the prompt, and the least and greatest chunks in each.

        [pieces + 1], and [factors, pieces] twice; the prompt's last chunk may be less. A chunk that
        is in a piece begins at most the greatest chunk before it.
        """
        edges = np.linspace(self._start, self._end, _NUM_PIECES + 1)
        factors = np.array(smooth_factors)[:, np.newaxis]
        earliest = edges[:-1] - rule.chunk_tokens
        least = rule.sizes_behind(edges[1:], factors)
        greatest = rule.sizes_behind(np.maximum(earliest, 0.0), factors)
        return edges, least, np.where(earliest > self._start, greatest, float(rule.chunk_tokens))

    def _least_sums_ms(
        self, stage: StageLatency, edges: FloatArray, least: FloatArray, greatest: FloatArray
    ) -> FloatArray:
        """Return what all chunks of one prompt take on a stage at least, for each factor."""
        own_ms = np.broadcast_to(_own_ms(stage, edges[:-1], edges[1:]), least.shape)
        num_chunks = (np.diff(edges) / greatest).sum(axis=1)
        total_ms = own_ms.sum(axis=1)
        ratios = self._ratios.get(stage)
        if ratios is not None:
            last = np.maximum(edges[-1] - greatest[:, -1], edges[0])
            last_ms = _own_ms(stage, last, np.full_like(last, edges[-1]))
            total_ms = (own_ms * ratios.between(least, greatest)).sum(axis=1)
            total_ms -= (ratios.most - ratios.least) * last_ms
        total_ms += stage.ms_per_prefix_token * num_chunks * edges[0]
        return _paid_ms(stage, num_chunks, total_ms)


def _own_ms(
    stage: StageLatency, starts: FloatArray | float, ends: FloatArray | float
) -> FloatArray:
    """Return what tokens and pairs take, as if sizes made no difference."""
    begin, end = np.asarray(starts, dtype=np.float64), np.asarray(ends, dtype=np.float64)
    own_ms: FloatArray = (end - begin) * (stage.ms_per_token + stage.ms_per_pair * (end + begin))
    return own_ms


def _paid_ms(stage: StageLatency, num_chunks: FloatArray, grows_ms: FloatArray) -> FloatArray:
    """Return what chunks take that have this to do together, at least."""
    paid_ms: FloatArray = num_chunks * stage.edge_ms + np.maximum(
        num_chunks * stage.floor_ms, num_chunks * stage.fixed_ms + grows_ms
    )
    return paid_ms


def _sum_ms(stages: Sequence[StageLatency], starts: FloatArray, ends: FloatArray) -> FloatArray:
    """Return the times of chunks, each on all of these stages."""
    counts = {stage: stages.count(stage) for stage in stages}
    total_ms = np.zeros(len(starts))
    for stage, count in counts.items():
        total_ms += count * stage.chunks_ms(starts, ends)
    return total_ms
