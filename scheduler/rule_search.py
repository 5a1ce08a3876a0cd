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
from scheduler.latency_model import FloatArray, PipelineLatency
from scheduler.pipeline_time import LinkTime, plan_finish_ms
from scheduler.prompt_cuts import Range
from scheduler.rule_bounds import RuleBounds
from scheduler.slot_plan import SlotPlan

SMOOTH_FACTORS = tuple(round(0.5 + 0.05 * step, 2) for step in range(11))
"""Of the dynamic rule, that are tried; 0 is fixed."""
_ROUNDING = 1e-12
"""A plan must be sooner by this ratio to be looked at."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RuleSearch:
    """One search, for what is left of a prompt, or of several alike in a row."""

    latency: PipelineLatency
    reach: ChunkReach
    """Of that pipeline at any size."""
    span: Range
    """[start, end), not empty; start is an aligned border."""
    repeats: int
    """How many prompts, >= 1."""
    link: LinkTime

    def best(self, found: SlotPlan, max_slot_ms: float) -> SlotPlan:
        """Return the plan that is through first, of this one and those of rules."""
        best, limit_ms = found, max(max_slot_ms, found.slot_ms)
        for least_ms, cut in sorted(self._rules(found.finish_ms), key=operator.itemgetter(0)):
            if least_ms >= best.finish_ms * (1 - _ROUNDING):
                break
            plan = self._judged(cut())
            if plan.finish_ms < best.finish_ms and plan.slot_ms <= limit_ms:
                best = plan
        return best

    def _rules(self, finish_ms: float) -> Iterator[tuple[float, Callable[[], FloatArray]]]:
        """Yield what plans take at least, where that is less, and how they are cut."""
        bounds = RuleBounds(self.latency, self.span, self.reach.align_tokens, self.repeats)
        sizes = self._fixed_sizes()
        least_ms = bounds.fixed_ms(sizes)
        for index in np.flatnonzero(least_ms < finish_ms).tolist():
            yield float(least_ms[index]), functools.partial(self._fixed, sizes[index])
        firsts = np.array(self._first_sizes(), dtype=np.float64)
        for first in firsts[bounds.first_ms(firsts) < finish_ms].astype(int).tolist():
            rule = DynamicChunks.of_pipeline(
                self.latency,
                chunk_tokens=first,
                page_tokens=self.reach.align_tokens,
                smooth_factor=1.0,
                context_tokens=None,
            )
            least_ms = bounds.dynamic_ms(rule, SMOOTH_FACTORS)
            for index in np.flatnonzero(least_ms < finish_ms).tolist():
                tried = dataclasses.replace(rule, smooth_factor=SMOOTH_FACTORS[index])
                yield float(least_ms[index]), functools.partial(self._dynamic, tried)

    def _fixed_sizes(self) -> FloatArray:
        """Return all sizes of whole cells, up to the first that holds the prompt."""
        align, (start, end) = self.reach.align_tokens, self.span
        most = min(-(-(end - start) // align) * align, self.reach.max_chunk_tokens)
        return np.arange(align, most + 1, align, dtype=np.float64)

    def _first_sizes(self) -> list[int]:
        """Return first sizes of the dynamic rule to try: powers of two, halfway, and known ones."""
        align, (start, end) = self.reach.align_tokens, self.span
        most = min(end - start, self.reach.max_chunk_tokens)
        powers = [align << power for power in range(32) if align << power <= most]
        known = {
            max(round(size / align), 1) * align
            for stage in self.latency.stages
            if stage.size_ratios
            for size in stage.size_ratios.tokens
        }
        halfway = {size * 3 // 2 for size in powers if size * 3 // 2 % align == 0}
        return sorted(size for size in {*powers, *halfway, *known} if size <= most)

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

    def _judged(self, borders: FloatArray) -> SlotPlan:
        """Return the plan with its figures."""
        starts, stops = borders[:-1], borders[1:]
        return SlotPlan(
            slot_ms=float(self.reach.chunks_ms(starts, stops).max()),
            finish_ms=plan_finish_ms(
                self.latency,
                np.tile(starts, self.repeats),
                np.tile(stops, self.repeats),
                self.link,
            ),
            borders=(borders,) * self.repeats,
        )
