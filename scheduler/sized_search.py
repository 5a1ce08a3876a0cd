"""Finds chunks of good sizes with which a pipeline is done sooner than with equal times. Pure.

The search for a slot (slot_search.py) takes all sizes to be equally good. Where a device is better
at some, behind a long prefix a chunk's fixed time is little, and what a good size saves is more. So
chunks of a slot that are nowhere shorter than such a size are tried beside. They take longer at a
prompt's end, and prompts in a row pay for it: as long as a prompt's long chunks are in the
pipeline, the in-flight window lets in only as many of the next one's short ones.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

import numpy as np

from scheduler.chunk_reach import ChunkReach
from scheduler.latency_model import FloatArray
from scheduler.prompt_cuts import Range, cut_at_least
from scheduler.slot_plan import SlotPlan
from scheduler.windowed_pipeline import WindowedPipeline

_NUM_SIZES = (2, 4)
"""Sizes whose slots are searched, of many chunks and of few.

Those that are best alike, or with somewhat longer ones first.
"""
_LONGER_FIRST = 1.5
"""By this ratio."""
_NEAR = 1.02
"""A size is not looked at if it is by more than this ratio worse than the best."""
_FAR = 1.04
"""Nor with longer chunks first, where chunks are many."""
_REFINED = 1.001
"""Nor is a grid of many chunks refined, whose best slot is worse than the best of all by more."""
_NUM_SLOTS = (6, 8)
"""Slots of a grid, of many chunks and of few."""
_MANY_CHUNKS = 400
_MANY_A_STAGE = 50
"""With more than both it takes long to try a slot, and the finish depends less on the slot."""
_NUM_WORSE = 3
"""Slots in a row behind which longer ones are not tried, if there are many chunks."""
_GRADINGS = (0.5,)
"""Of the first chunks: from equal times towards equal sizes."""
_AS_SLOW = 0.9
"""A stage is one of the slowest from this ratio of the slowest one's time on."""
_FEW_CHUNKS = 100
"""Up to here, where a slot's chunks are few, slots are tried whatever the size at the end."""
_MAX_AS_IF = 800
"""Nor are slots tried there that would be more."""
_PAST = 1.1
"""So far such a grid goes beyond the slot that holds the longest."""
_NUM_RHYTHM = 2
"""So many prompts of several in a row are looked at."""
_NUM_JUDGED = 2
"""Plans that are judged to their end."""
_MAX_CHUNKS = 8192
"""Sizes that make more chunks of a prompt are not tried: they would only take planning."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Tried:
    """A cut of all prompts."""

    cost_ms: float
    """When the pipeline is through with it."""
    borders: tuple[FloatArray, ...]
    """Of each prompt, from its start to its end."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SizedSearch:
    """One search, for the rest of some prompts."""

    pipeline: WindowedPipeline
    reach: ChunkReach
    """Of that pipeline at any size: slots are what it says, and no chunk takes longer."""
    ranges: tuple[Range, ...]
    """[start, end) of each prompt, none empty, at least one."""

    def best(self, even: SlotPlan, max_slot_ms: float) -> SlotPlan:
        """Return the plan that is through first, of this one and those of good sizes."""
        num_chunks = even.num_chunks
        is_few = num_chunks <= _FEW_CHUNKS
        tried = self._try_sizes(max_slot_ms, _NUM_SIZES[is_few])
        if is_few:
            mean = sum(end - start for start, end in self.ranges) // num_chunks
            tried += self._try_as_if(mean, max_slot_ms)
        if max(end - start for start, end in self.ranges) <= self.reach.max_chunk_tokens:
            tried.append(self._try(tuple(np.array(span, dtype=np.float64) for span in self.ranges)))
        limit_ms = max(max_slot_ms, even.slot_ms)
        held = (
            each for each in sorted(tried, key=_cost_ms) if self._slot_ms(each.borders) <= limit_ms
        )
        plans = map(self._planned, itertools.islice(held, _NUM_JUDGED))
        return min([even, *plans], key=lambda plan: plan.finish_ms)

    def _try_sizes(self, max_slot_ms: float, num_sizes: int) -> list[_Tried]:
        """Cut in one size and, for the best of these, with other slots.

        From one that holds the size without a prefix to one that holds it at the end.
        """
        sizes = self._sizes(max_slot_ms)
        best = {size: self._cut(size, 0.0) for size in sizes}
        tried = [*best.values()]
        far_ms = _FAR * min((each.cost_ms for each in tried), default=0.0)
        for size in sizes:
            if not self._is_many(size) or best[size].cost_ms <= far_ms:
                longer_first = self._cut(size, _LONGER_FIRST * self.reach.chunk_ms(0, size))
                best[size] = min(best[size], longer_first, key=_cost_ms)
                tried.append(longer_first)
        near_ms = _NEAR * min(map(_cost_ms, tried), default=0.0)
        near = [size for size in sizes if best[size].cost_ms <= near_ms]
        for size in sorted(near, key=lambda size: best[size].cost_ms)[:num_sizes]:
            low_ms = self.reach.chunk_ms(0, size)
            high_ms = self.reach.chunk_ms(self._furthest - size, self._furthest)
            good_ms = _REFINED * min(map(_cost_ms, tried))
            tried += self.zoom(size, (low_ms, high_ms), good_ms)
        return tried

    def _try_as_if(self, size: int, max_slot_ms: float) -> list[_Tried]:
        """Try slots as if all chunks took what those of a size do.

        SlotSearch has tried slots, but as if all chunks were of the worst size.
        """
        sizes = [known for known in self._known if known <= self._furthest]
        if not sizes:
            return []
        reach = self.reach.of_latency(self.pipeline.latency.as_if(size))
        slots_ms = [min(reach.chunk_ms(0, known), max_slot_ms) for known in sizes]
        work_ms = sum(reach.grows_ms(*span) for span in set(self.ranges))
        slots_ms = [slot_ms for slot_ms in slots_ms if work_ms <= _MAX_AS_IF * slot_ms]
        if not slots_ms:
            return []
        interval_ms = min(slots_ms), _PAST * max(slots_ms)
        as_if = dataclasses.replace(self, reach=reach)
        return as_if.zoom(reach.align_tokens, interval_ms, math.inf)

    def zoom(self, size: int, interval_ms: tuple[float, float], good_ms: float) -> list[_Tried]:
        """Try the slots of a grid, and of a finer one around the best if that may be good."""
        low_ms, high_ms = interval_ms
        is_many = self._is_many(size)
        num_slots = _NUM_SLOTS[not is_many]
        tried: list[_Tried] = []
        for gradings in (self._gradings, ()):
            grid_ms = np.geomspace(low_ms, high_ms, num_slots + 1).tolist()
            costs_ms: list[float] = []
            for slot_ms in grid_ms[:-1]:
                cuts = [self._cut(size, slot_ms, grading) for grading in (0.0, *gradings)]
                tried += cuts
                costs_ms.append(min(map(_cost_ms, cuts)))
                if is_many and min(costs_ms) < min(costs_ms[-_NUM_WORSE:]):
                    break
            best = costs_ms.index(min(costs_ms))
            if is_many and costs_ms[best] > good_ms:
                break
            low_ms, high_ms = grid_ms[max(best - 1, 0)], grid_ms[best + 1]
        return tried

    def _is_many(self, size: int) -> bool:
        """Say whether chunks of a size are so many that to try them takes long."""
        num_chunks = sum(end - start for start, end in set(self.ranges)) // size
        return num_chunks > max(_MANY_CHUNKS, _MANY_A_STAGE * self.pipeline.latency.num_stages)

    @property
    def _gradings(self) -> Sequence[float]:
        """Shapes of the first chunks to try beside equal times.

        Faster stages before the slowest fill it sooner if the first chunks are short.
        """
        start, end = self.ranges[0]
        times_ms = [stage.chunk_ms(start, end) for stage in self.pipeline.latency.stages]
        return _GRADINGS if times_ms[0] < _AS_SLOW * max(times_ms) else ()

    def _sizes(self, max_slot_ms: float) -> list[int]:
        """Return the sizes that can be taken wherever they end, and are worth planning."""
        end = self._furthest
        least = max(stop - start for start, stop in self.ranges) / _MAX_CHUNKS
        most = min(self.reach.max_chunk_tokens, end)
        sizes = [size for size in self._known if least <= size <= most]
        return [size for size in sizes if self.reach.chunk_ms(end - size, end) <= max_slot_ms]

    @property
    def _known(self) -> list[int]:
        """The sizes whose ratios are known, of whole cells."""
        align = self.reach.align_tokens
        known = {
            max(round(size / align), 1) * align
            for stage in self.pipeline.latency.stages
            if stage.size_ratios
            for size in stage.size_ratios.tokens
        }
        return sorted(known)

    @property
    def _furthest(self) -> int:
        """The greatest end."""
        return max(end for _, end in self.ranges)

    def _cut(self, size: int, slot_ms: float, grading: float = 0.0) -> _Tried:
        """Cut all prompts in chunks of a slot, but none shorter than the size."""
        spans = dict.fromkeys(self.ranges)
        cut = {span: cut_at_least(self.reach, span, size, slot_ms, grading) for span in spans}
        return self._try(tuple(cut[span] for span in self.ranges))

    def _try(self, borders: tuple[FloatArray, ...]) -> _Tried:
        """Find when the pipeline is through; of many prompts alike in a row, about when.

        The first few tell the rhythm.
        """
        if len(borders) <= _NUM_RHYTHM or len(set(self.ranges)) > 1:
            return _Tried(cost_ms=self._finish_ms(borders), borders=borders)
        few_ms = self._finish_ms(borders[: _NUM_RHYTHM - 1])
        rhythm_ms = self._finish_ms(borders[:_NUM_RHYTHM])
        left_ms = (len(borders) - _NUM_RHYTHM) * (rhythm_ms - few_ms)
        return _Tried(cost_ms=rhythm_ms + left_ms, borders=borders)

    def _finish_ms(self, borders: Sequence[FloatArray], most_ms: float = math.inf) -> float:
        """Return when prompts in a row are through."""
        starts = np.concatenate([own[:-1] for own in borders])
        stops = np.concatenate([own[1:] for own in borders])
        return self.pipeline.finish_ms(starts, stops, most_ms)

    def _planned(self, tried: _Tried) -> SlotPlan:
        """Return the plan with its figures; its slot is by reach, as microbatches are filled."""
        return SlotPlan(
            slot_ms=self._slot_ms(tried.borders),
            finish_ms=self._finish_ms(tried.borders),
            borders=tried.borders,
        )

    def _slot_ms(self, borders: tuple[FloatArray, ...]) -> float:
        """Return the longest chunk's time."""
        distinct = {id(own): own for own in borders}.values()
        return max(float(self.reach.chunks_ms(own[:-1], own[1:]).max()) for own in distinct)


def _cost_ms(tried: _Tried) -> float:
    """Return when the pipeline is through."""
    return tried.cost_ms
