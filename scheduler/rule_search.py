"""Finds plans by rules, fixed and dynamic, with which a pipeline is done sooner still. Pure.

The searches (slot_search.py, sized_search.py) look at grids, so a size that somebody tunes may do
better by a trifle, or by more where sizes make a difference. So all fixed sizes, and the dynamic
rule over a grid of what its users tune, are held against the best found. Nearly all are ruled out
by what one path through stages and chunks takes at least (rule_bounds.py).
"""

from __future__ import annotations

import dataclasses
import functools
import operator
from collections.abc import Callable, Iterator

import numpy as np

from scheduler.chunk_dynamic import DynamicChunks
from scheduler.chunk_reach import ChunkReach
from scheduler.latency_model import FloatArray
from scheduler.prompt_cuts import Range
from scheduler.rule_bounds import RuleBounds
from scheduler.slot_plan import SlotPlan
from scheduler.windowed_pipeline import WindowedPipeline

SMOOTH_FACTORS = tuple(round(0.5 + 0.05 * step, 2) for step in range(11))
"""Of the dynamic rule, that are tried; 0 is fixed."""
_MAX_CHUNKS = 4096
"""Plans of more are not looked at: they would save under 0.03 % a stage."""
_ROUNDING = 1e-12
"""A plan must be sooner by this ratio to be looked at."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuleSearch:
    """One search, for what is left of a prompt, or of several alike in a row."""

    pipeline: WindowedPipeline
    reach: ChunkReach
    """Of that pipeline at any size."""
    span: Range
    """[start, end), not empty; start is an aligned border."""
    repeats: int
    """How many prompts, >= 1."""

    def best(self, found: SlotPlan, max_slot_ms: float) -> SlotPlan:
        """Return the plan that is through first, of this one and those of rules."""
        best, limit_ms = found, max(max_slot_ms, found.slot_ms)
        for least_ms, cut in sorted(self._rules(found.finish_ms), key=operator.itemgetter(0)):
            if least_ms >= best.finish_ms * (1 - _ROUNDING):
                break
            borders = cut()
            if len(borders) > _MAX_CHUNKS:
                continue
            plan = self._judged(borders, best.finish_ms)
            if plan.finish_ms < best.finish_ms and plan.slot_ms <= limit_ms:
                best = plan
        return best

    def _rules(self, finish_ms: float) -> Iterator[tuple[float, Callable[[], FloatArray]]]:
        """Yield what plans take at least, where that is less, and how they are cut."""
        bounds = RuleBounds(self.pipeline, self.span, self.reach.align_tokens, self.repeats)
        sizes = self._fixed_sizes()
        least_ms = bounds.fixed_ms(sizes)
        for index in np.flatnonzero(least_ms < finish_ms).tolist():
            yield float(least_ms[index]), functools.partial(self._fixed, sizes[index])
        firsts = np.array(self._first_sizes(), dtype=np.float64)
        rules = [
            self._rule(first)
            for first in firsts[bounds.first_ms(firsts) < finish_ms].astype(int).tolist()
        ]
        if not rules:
            return
        least_ms = bounds.dynamic_ms(rules, SMOOTH_FACTORS)
        for index, factor in np.argwhere(least_ms < finish_ms).tolist():
            tried = dataclasses.replace(rules[index], smooth_factor=SMOOTH_FACTORS[factor])
            yield float(least_ms[index, factor]), functools.partial(self._dynamic, tried)

    def _rule(self, first_tokens: int) -> DynamicChunks:
        """Return the dynamic rule for a first size."""
        return DynamicChunks.of_pipeline(
            self.pipeline.latency,
            chunk_tokens=first_tokens,
            page_tokens=self.reach.align_tokens,
            smooth_factor=1.0,
            context_tokens=None,
        )

    def _fixed_sizes(self) -> FloatArray:
        """Return sizes of whole cells, up to the first that holds the prompt."""
        align, (start, end) = self.reach.align_tokens, self.span
        most = min(-(-(end - start) // align) * align, self.reach.max_chunk_tokens)
        least = -(-(end - start) // (_MAX_CHUNKS * align)) * align
        return np.arange(least, most + 1, align, dtype=np.float64)

    def _first_sizes(self) -> list[int]:
        """Return first sizes of the dynamic rule to try: powers of two, halfway, and known ones."""
        align, (start, end) = self.reach.align_tokens, self.span
        most = min(end - start, self.reach.max_chunk_tokens)
        powers = [align << power for power in range(32) if align << power <= most]
        known = {
            max(round(size / align), 1) * align
            for stage in self.pipeline.latency.stages
            if stage.size_ratios
            for size in stage.size_ratios.tokens
        }
        halfway = {size * 3 // 2 for size in powers if size * 3 // 2 % align == 0}
        least = (end - start) / _MAX_CHUNKS
        return sorted(size for size in {*powers, *halfway, *known} if least <= size <= most)

    def _fixed(self, size: float) -> FloatArray:
        """Return the borders of chunks of one size."""
        start, end = self.span
        return np.concatenate([np.arange(start, end, size), [end]])

    def _dynamic(self, rule: DynamicChunks) -> FloatArray:
        """Return the borders that the rule makes."""
        start, end = self.span
        align = self.reach.align_tokens
        starts = np.arange(start, end, align, dtype=np.float64)
        sizes = (rule.sizes_behind(starts, rule.smooth_factor) / align).astype(int).tolist()
        cells, cell = [0], rule.chunk_tokens // align
        while cell < len(sizes):
            cells.append(cell)
            cell += sizes[cell]
        return np.concatenate([start + align * np.array(cells, dtype=np.float64), [end]])

    def _judged(self, borders: FloatArray, most_ms: float) -> SlotPlan:
        """Return the plan with its figures; one that is through later than at most_ms is none."""
        starts, stops = borders[:-1], borders[1:]
        return SlotPlan(
            slot_ms=float(self.reach.chunks_ms(starts, stops).max()),
            finish_ms=self.pipeline.finish_ms(
                np.tile(starts, self.repeats), np.tile(stops, self.repeats), most_ms
            ),
            borders=(borders,) * self.repeats,
        )
