"""Cuts prompts so that a pipeline is done soonest, by its latency model. Pure."""

from __future__ import annotations

import dataclasses
import math
import operator
from collections.abc import Iterator, Sequence

import numpy as np

from scheduler.chunk_reach import ChunkReach
from scheduler.few_cells import best_of_all, has_few_cells
from scheduler.latency_model import FloatArray, PipelineLatency
from scheduler.pipeline_time import NO_LINK, LinkTime
from scheduler.prompt_cuts import cut_from_the_end, cut_in_shares, even_out
from scheduler.rule_search import RuleSearch
from scheduler.sized_search import SizedSearch
from scheduler.slot_plan import SlotPlan
from scheduler.slot_search import SlotSearch
from scheduler.windowed_pipeline import WindowedPipeline

_LEAST_ALIGNMENT_TOKENS = 64
_FAR_MULTIPLE = 4
_MOST_MULTIPLE = 2
_NUM_NEAR = 2
"""Numbers of chunks to try on either side, of a prompt that is not searched for."""
_MAX_NEAR = 64
"""With more chunks one more or less hardly matters."""
_SLIVER_SHARE = 0.25
"""Of the chunk before: a last chunk that is less is little."""


def fine_alignment(page_tokens: int) -> int:
    """Return what borders are multiples of: of pages and 64, unless that is far more than both.

    A page of 1023 would leave a border every 65472 tokens. Then it is so many whole pages as hold
    64 tokens.
    """
    both = math.lcm(page_tokens, _LEAST_ALIGNMENT_TOKENS)
    is_near = both <= _FAR_MULTIPLE * max(page_tokens, _LEAST_ALIGNMENT_TOKENS)
    return both if is_near else -(-_LEAST_ALIGNMENT_TOKENS // page_tokens) * page_tokens


def coarse_alignment(align_tokens: int, preferred_tokens: int) -> int:
    """Return what borders are multiples of if a length is preferred, itself one of align_tokens.

    Twice the preferred length fills a device as well; where more of it would have to be taken, it
    is rounded down.
    """
    if preferred_tokens <= align_tokens:
        return align_tokens
    both = math.lcm(align_tokens, preferred_tokens)
    is_near = both <= _MOST_MULTIPLE * preferred_tokens
    return both if is_near else preferred_tokens // align_tokens * align_tokens


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OptimalChunks:
    """Chunks of equal time, as long as it takes to be through soonest."""

    latency: PipelineLatency
    page_tokens: int
    """Borders are multiples of it and mostly of 64, unless max_chunk_tokens is less than that."""
    max_chunk_tokens: int | None = None
    """>= 1; what a stage's buffers hold."""
    max_chunk_ms: float | None = None
    """Longest chunk, for those who wait between; one of a single aligned cell is always allowed."""
    link: LinkTime = NO_LINK
    """Between all stages."""
    window: int | None = None
    """Most chunks in the pipeline, >= 1; None lets in all."""
    preferred_tokens: int = 0
    """Borders are multiples of about so many, too, if a chunk can be that long; 0 prefers none."""
    reach: ChunkReach = dataclasses.field(init=False, repr=False, compare=False)
    """Which borders there can be; aligned as coarsely as the largest chunk allows.

    Of no size in particular: a chunk may take less than it says, and never more.
    """
    fine_reach: ChunkReach = dataclasses.field(init=False, repr=False, compare=False)
    """The same, but for what is preferred."""

    def __post_init__(self) -> None:
        largest = math.inf if self.max_chunk_tokens is None else self.max_chunk_tokens
        wanted = (fine_alignment(self.page_tokens), self.page_tokens, 1)
        fine = ChunkReach(
            self.latency.at_any_size(),
            align_tokens=next(tokens for tokens in wanted if tokens <= largest),
            max_chunk_tokens=self.max_chunk_tokens,
        )
        coarse_tokens = coarse_alignment(fine.align_tokens, self.preferred_tokens)
        limit_ms = math.inf if self.max_chunk_ms is None else self.max_chunk_ms
        is_held = coarse_tokens <= largest and fine.chunk_ms(0, coarse_tokens) <= limit_ms
        reach = fine.aligned_to(coarse_tokens) if is_held else fine
        object.__setattr__(self, "fine_reach", fine)
        object.__setattr__(self, "reach", reach)

    @property
    def has_sizes(self) -> bool:
        """Whether the size of a chunk makes a difference beside its time."""
        return any(stage.size_ratios for stage in self.latency.stages)

    @property
    def pipeline(self) -> WindowedPipeline:
        """What plans are judged by."""
        return WindowedPipeline(latency=self.latency, link=self.link, window=self.window)

    def cut(self, start: int, end: int) -> Sequence[int]:
        """Return the ends of the chunks of [start, end)."""
        return self.cut_all([(start, end)]).ends[0]

    def cut_all(self, ranges: Sequence[tuple[int, int]]) -> SlotPlan:
        """Cut what is left of several prompts, at least one, none empty, to one common slot."""
        spans = tuple(ranges)
        limit_ms = math.inf if self.max_chunk_ms is None else self.max_chunk_ms
        pipeline = self.pipeline
        if len(spans) == 1 and has_few_cells(self.reach, spans[0]):
            return best_of_all(pipeline, self.reach, spans[0], limit_ms)
        at_any_size = dataclasses.replace(pipeline, latency=self.latency.at_any_size())
        plan = SlotSearch(
            pipeline=at_any_size, reach=self.reach, ranges=spans, is_last=not self.has_sizes
        ).best(limit_ms)
        if self.has_sizes:
            plan = dataclasses.replace(plan, finish_ms=_finish_ms(pipeline, plan.borders))
            sized = SizedSearch(pipeline=pipeline, reach=self.reach, ranges=spans)
            plan = sized.best(plan, limit_ms)
        if self._is_held_to_rules(spans):
            rules = RuleSearch(
                pipeline=pipeline, reach=self.reach, span=spans[0], repeats=len(spans)
            )
            plan = rules.best(plan, limit_ms)
        return self._without_slivers(pipeline, plan, limit_ms)

    def _without_slivers(
        self, pipeline: WindowedPipeline, plan: SlotPlan, limit_ms: float
    ) -> SlotPlan:
        """Let last chunks that are little beside those before be taken with them, if not later."""
        borders = tuple(map(self._joined, plan.borders))
        if all(map(operator.is_, borders, plan.borders)):
            return plan
        finish_ms = _finish_ms(pipeline, borders)
        slot_ms = max(float(self.reach.chunks_ms(own[:-1], own[1:]).max()) for own in borders)
        if finish_ms > plan.finish_ms or slot_ms > max(limit_ms, plan.slot_ms):
            return plan
        return SlotPlan(slot_ms=slot_ms, finish_ms=finish_ms, borders=borders)

    def _joined(self, borders: FloatArray) -> FloatArray:
        """Return a prompt's borders without the last inner one if little is behind it."""
        if len(borders) == 2:
            return borders
        before, last, end = borders[-3:].tolist()
        is_little = end - last < _SLIVER_SHARE * (last - before)
        if not is_little or end - before > self.reach.max_chunk_tokens:
            return borders
        return np.delete(borders, -2)

    def _is_held_to_rules(self, spans: Sequence[tuple[int, int]]) -> bool:
        """Say whether plans of rules have borders as here, and are the same for all."""
        return len(set(spans)) == 1 and spans[0][0] % self.reach.align_tokens == 0

    def cut_to(self, start: int, end: int, slot_ms: float) -> Sequence[int]:
        """Return the ends of the fewest chunks of slot_ms at most, of about equal time.

        The last one may be longer by a little that is not worth a chunk.
        """
        earliest = cut_from_the_end(self.reach, (start, end), slot_ms)
        borders: list[int] = even_out(self.reach, earliest).astype(int).tolist()
        if len(borders) > 2 and self._is_taken_along(*borders[-3:]):
            del borders[-2]
        return borders[1:]

    def cut_alone(self, start: int, end: int, slot_ms: float) -> SlotPlan:
        """Cut one prompt, not empty, in a millisecond or two: about as slot_ms has it, or better.

        Of few cells it is the best there is; else of about so many chunks, of about equal time.
        """
        limit_ms = math.inf if self.max_chunk_ms is None else self.max_chunk_ms
        if has_few_cells(self.reach, (start, end)) and not self._is_at_floor(start, end):
            return best_of_all(self.pipeline, self.reach, (start, end), limit_ms)
        ends = self.cut_to(start, end, slot_ms)
        best = self._planned(np.array([start, *ends], dtype=np.float64))
        if len(ends) > _MAX_NEAR or self._is_at_floor(start, end):
            return best
        limit_ms = max(limit_ms, best.slot_ms)
        for borders in self._near(start, end, len(ends)):
            plan = self._planned(borders)
            if plan.finish_ms < best.finish_ms and plan.slot_ms <= limit_ms:
                best = plan
        return best

    def _near(self, start: int, end: int, num_chunks: int) -> Iterator[FloatArray]:
        """Yield borders of about so many chunks, and of slots that hold about so many cells."""
        for number in range(max(num_chunks - _NUM_NEAR, 1), num_chunks + _NUM_NEAR + 1):
            borders = cut_in_shares(self.reach, (start, end), np.ones(number), 0.0)
            if borders is not None:
                yield borders
        align = self.reach.align_tokens
        num_cells = (end - start) // (num_chunks * align)
        for cells in range(max(num_cells - 1, 1), num_cells + _NUM_NEAR + 1):
            slot_ms = self.reach.chunk_ms(max(end - cells * align, start), end)
            yield np.array([start, *self.cut_to(start, end, slot_ms)], dtype=np.float64)

    def _is_at_floor(self, start: int, end: int) -> bool:
        """Say whether all in one chunk takes no longer than hardly anything."""
        is_held = end - start <= self.reach.max_chunk_tokens
        return is_held and self.reach.chunk_ms(start, end) <= self.reach.least_ms

    def _planned(self, borders: FloatArray) -> SlotPlan:
        """Return one prompt's plan with its figures."""
        return SlotPlan(
            slot_ms=float(self.reach.chunks_ms(borders[:-1], borders[1:]).max()),
            finish_ms=self.pipeline.finish_ms(borders[:-1], borders[1:]),
            borders=(borders,),
        )

    def _is_taken_along(self, before: int, last: int, end: int) -> bool:
        """Say whether a last chunk is less than a cell, and little, and may be one with another."""
        most = max(self.fine_reach.align_tokens, _SLIVER_SHARE * (last - before))
        is_little = end - last < min(most, self.reach.align_tokens)
        is_held = end - before <= self.reach.max_chunk_tokens
        limit_ms = math.inf if self.max_chunk_ms is None else self.max_chunk_ms
        return is_little and is_held and self.reach.chunk_ms(before, end) <= limit_ms


def _finish_ms(pipeline: WindowedPipeline, borders: Sequence[FloatArray]) -> float:
    """Return when prompts in a row are through."""
    starts = np.concatenate([own[:-1] for own in borders])
    stops = np.concatenate([own[1:] for own in borders])
    return pipeline.finish_ms(starts, stops)
