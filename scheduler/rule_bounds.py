"""What plans of fixed sizes and of the dynamic rule take at least, without cutting them. Pure.

No plan is through sooner than any path through it: the first chunk on the stages before the
slowest, then all chunks on that one, and one chunk on those behind it. What a path takes is summed
in closed form for a fixed size, and over pieces of the prompt for the dynamic rule. Where links or
a narrow window keep chunks waiting, nor is it sooner than the window lets them all through.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import numpy as np

from scheduler.chunk_dynamic import DynamicChunks
from scheduler.latency_model import FloatArray, StageLatency
from scheduler.least_ratios import LeastRatios
from scheduler.windowed_pipeline import WindowedPipeline

_NUM_PIECES = 64


class RuleBounds:
    """Bounds for one prompt, or several alike in a row."""

    def __init__(
        self, pipeline: WindowedPipeline, span: tuple[int, int], align_tokens: int, repeats: int
    ) -> None:
        """Look at the prompt [start, end), not empty, start being a multiple of align_tokens."""
        self._start, self._end = span
        self._pipeline = pipeline
        stages = pipeline.latency.stages
        times_ms = [stage.chunk_ms(*span) for stage in stages]
        slowest = times_ms.index(max(times_ms))
        self._before = stages[:slowest]
        self._slowest = stages[slowest]
        self._behind = stages[slowest + 1 :]
        self._repeats = repeats
        self._align = align_tokens
        self._waiting = dict(Counter(stages)) if pipeline.may_wait else {}
        """All stages and how often each is there, if chunks may wait for the window."""
        self._ratios = {
            stage: LeastRatios(stage.size_ratios, align_tokens, self._end - self._start)
            for stage in (self._slowest, stages[-1], *self._waiting)
            if stage.size_ratios
        }

    def fixed_ms(self, sizes: FloatArray) -> FloatArray:
        """Return the bound of each size, whole cells; behind the slowest as the last whole one."""
        start, end = np.full_like(sizes, self._start), np.full_like(sizes, self._end)
        num_whole = np.ceil((end - start) / sizes) - 1
        is_cut = num_whole > 0
        rest = start + num_whole * sizes
        last_whole = np.maximum(rest - sizes, start)
        whole_ms, rest_ms = self._fixed_sums_ms(self._slowest, sizes)
        last_ms = self._behind[-1].chunks_ms(rest, end) if self._behind else rest_ms
        fill_ms = _sum_ms(self._before, start, np.minimum(start + sizes, end))
        fill_ms += _sum_ms(self._behind, last_whole, np.where(is_cut, rest, end))
        own_rest_ms = (self._repeats - 1) * rest_ms + np.where(is_cut, last_ms, rest_ms)
        bounds_ms = self._repeats * whole_ms + own_rest_ms + fill_ms + self._pipeline.travel_ms
        sums_ms = {stage: np.add(*self._fixed_sums_ms(stage, sizes)) for stage in self._waiting}
        return np.maximum(bounds_ms, self._waited_ms(sums_ms, num_whole + 1))

    def _fixed_sums_ms(
        self, stage: StageLatency, sizes: FloatArray
    ) -> tuple[FloatArray, FloatArray]:
        """Return what the chunks of a prompt take on a stage: all but the last, and the last."""
        start, end = np.full_like(sizes, self._start), np.full_like(sizes, self._end)
        num_whole = np.ceil((end - start) / sizes) - 1
        rest = start + num_whole * sizes
        own_ms = _own_ms(stage, start, rest)
        if stage.size_ratios:
            own_ms = own_ms * stage.size_ratios.of_sizes(sizes)
        last_whole = np.maximum(rest - sizes, start)
        prefix_ms = stage.ms_per_prefix_token * (start + last_whole) / 2
        whole_ms = _paid_ms(stage, num_whole, own_ms + num_whole * prefix_ms)
        return whole_ms, stage.chunks_ms(rest, end)

    def _waited_ms(
        self, sums_ms: Mapping[StageLatency, FloatArray], num_chunks: FloatArray
    ) -> FloatArray | float:
        """Return the bound by the window, from what a prompt takes on each stage at least.

        Every window-th chunk enters when the one before has left: so all chunks on all stages and
        links take together at most as often as the window is wide.
        """
        if not self._waiting or self._pipeline.window is None:
            return 0.0
        link, num_links = self._pipeline.link, self._pipeline.num_stages - 1
        total_ms = num_chunks * self._pipeline.travel_ms
        total_ms += num_links * link.ms_per_token * (self._end - self._start)
        for stage, count in self._waiting.items():
            total_ms = total_ms + count * sums_ms[stage]
        return self._repeats * total_ms / self._pipeline.window

    def dynamic_ms(self, rules: Sequence[DynamicChunks], factors: Sequence[float]) -> FloatArray:
        """Return the bound of each rule of whole cells with each factor, [rules, factors].

        It is the greatest of three paths: behind the slowest as a chunk of hardly anything, on all
        stages as the first one or, if the last is as slow as any, as the last whole one.
        """
        sizes = np.array([float(rule.chunk_tokens) for rule in rules])[:, np.newaxis]
        first = np.full_like(sizes, self._start), np.minimum(self._start + sizes, self._end)
        first_ms = _sum_ms(self._before, *first)
        last = self._behind[-1] if self._behind else self._slowest
        least_ms = sum(stage.edge_ms + stage.floor_ms for stage in self._behind)
        pieces = self._pieces(rules, factors)
        sums_ms = {
            stage: self._least_sums_ms(stage, *pieces)
            for stage in {self._slowest, last, *self._waiting}
        }
        on_slowest_ms, on_last_ms = sums_ms[self._slowest], sums_ms[last]
        behind_ms = _sum_ms(self._behind, *first)
        one_ms = self._slowest.chunks_ms(*first) - last.chunks_ms(*first)
        before_last_ms = (self._repeats - 1) * on_slowest_ms
        ends_ms = before_last_ms + np.maximum(
            on_slowest_ms + least_ms, on_last_ms + behind_ms + one_ms
        )
        if last == self._slowest:
            whole = np.maximum(self._end - 2 * sizes, self._start) + 0 * pieces[1][..., -1]
            whole_ms = _sum_ms(self._behind, whole, whole + pieces[1][..., -1])
            whole_ms = np.where(sizes < self._end - self._start, whole_ms, 0.0)
            ends_ms = np.maximum(ends_ms, before_last_ms + on_slowest_ms + whole_ms)
        bounds_ms = ends_ms + first_ms + self._pipeline.travel_ms
        num_chunks = (np.diff(pieces[0]) / pieces[2]).sum(axis=-1)
        return np.maximum(bounds_ms, self._waited_ms(sums_ms, num_chunks))

    def first_ms(self, sizes: FloatArray) -> FloatArray:
        """Return what plans take at least whose first chunk has such a size, and none more."""
        start = np.full_like(sizes, self._start)
        first = np.minimum(start + sizes, self._end)
        stages = (*self._before, self._slowest, *self._behind)
        num_chunks = (self._end - start) / sizes
        sums_ms = {
            stage: self._first_sums_ms(stage, num_chunks) for stage in {stages[-1], *self._waiting}
        }
        bounds_ms = self._repeats * sums_ms[stages[-1]] + _sum_ms(stages[:-1], start, first)
        bounds_ms += self._pipeline.travel_ms
        return np.maximum(bounds_ms, self._waited_ms(sums_ms, num_chunks))

    def _first_sums_ms(self, stage: StageLatency, num_chunks: FloatArray) -> FloatArray:
        """Return what a prompt in so many chunks takes on a stage at least."""
        own_ms = np.full_like(num_chunks, float(_own_ms(stage, self._start, self._end)))
        if stage in self._ratios:
            own_ms *= self._ratios[stage].least
        return _paid_ms(stage, num_chunks, own_ms)

    def _pieces(
        self, rules: Sequence[DynamicChunks], factors: Sequence[float]
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Return borders of pieces of the prompt, and the least and greatest chunks in each.

        [pieces + 1], and [rules, factors, pieces] twice; the prompt's last chunk may be less. A
        chunk that is in a piece begins at most the greatest chunk before it.
        """
        edges = np.linspace(self._start, self._end, _NUM_PIECES + 1)
        column = np.array(factors)[:, np.newaxis]
        least = np.stack([rule.sizes_behind(edges[1:], column) for rule in rules])
        sizes = np.array([float(rule.chunk_tokens) for rule in rules])[:, np.newaxis, np.newaxis]
        earliest = edges[:-1] - sizes
        greatest = np.stack(
            [
                rule.sizes_behind(np.maximum(own, 0.0), column)
                for rule, own in zip(rules, earliest[:, 0], strict=True)
            ]
        )
        return edges, least, np.where(earliest > self._start, greatest, sizes)

    def _least_sums_ms(
        self, stage: StageLatency, edges: FloatArray, least: FloatArray, greatest: FloatArray
    ) -> FloatArray:
        """Return what all chunks of one prompt take on a stage at least, [rules, factors]."""
        own_ms = np.broadcast_to(_own_ms(stage, edges[:-1], edges[1:]), least.shape)
        num_chunks = (np.diff(edges) / greatest).sum(axis=-1)
        total_ms = own_ms.sum(axis=-1)
        ratios = self._ratios.get(stage)
        if ratios is not None:
            last = np.maximum(edges[-1] - greatest[..., -1], edges[0])
            last_ms = _own_ms(stage, last, np.full_like(last, edges[-1]))
            total_ms = (own_ms * ratios.between(least, greatest)).sum(axis=-1)
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
    total_ms = np.zeros_like(starts)
    for stage, count in counts.items():
        total_ms += count * stage.chunks_ms(starts, ends)
    return total_ms
