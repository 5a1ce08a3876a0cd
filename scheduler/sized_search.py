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
from collections.abc import Sequence

import numpy as np

from scheduler.chunk_reach import ChunkReach
from scheduler.latency_model import FloatArray, PipelineLatency
from scheduler.pipeline_time import LinkTime, chunk_times_ms, finish_times_ms, plan_finish_ms
from scheduler.prompt_cuts import Ends, Range, cut_at_least
from scheduler.slot_search import SlotPlan

_NUM_SIZES = (2, 4)
"""Sizes whose slots are searched, of many chunks and of few.

Those that are best alike, or with somewhat longer ones first.
"""
_LONGER_FIRST = 1.5
"""By this ratio."""
_NEAR = 1.02
"""A size is not looked at if it is by more than this ratio worse than the best."""
_NUM_SLOTS = (5, 8)
"""Least and most slots of a grid."""
_GRID_CHUNKS = 17_000
"""Chunks to look at in one grid."""
_NUM_WORSE = 3
"""Slots in a row behind which longer ones are not tried, if there are many chunks."""
_GRADINGS = (0.5,)
"""Of the first chunks: from equal times towards equal sizes."""
_AS_SLOW = 0.9
"""A stage is one of the slowest from this ratio of the slowest one's time on."""
_FEW_CHUNKS = 100
"""Up to here, where a slot's chunks are few, slots are tried whatever the size at the end."""
_PAST = 1.1
"""So far such a grid goes beyond the slot that holds the longest."""
_MAX_CHUNKS = 8192
"""Sizes that make more chunks of a prompt are not tried: they would only take planning."""

_Costs = dict[tuple[Ends, ...], float]
"""When the pipeline is through with cuts of all prompts, in ms."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SizedSearch:
    """One search, for the rest of some prompts."""

    latency: PipelineLatency
    reach: ChunkReach
    """Of that pipeline at any size: slots are what it says, and no chunk takes longer."""
    ranges: tuple[Range, ...]
    """[start, end) of each prompt, none empty, at least one."""
    link: LinkTime

    def best(self, even: SlotPlan, max_slot_ms: float) -> SlotPlan:
        """Return the plan that is through first, of this one and those of good sizes."""
        num_chunks = sum(map(len, even.ends))
        is_few = num_chunks <= _FEW_CHUNKS
        costs_ms = self._tried(max_slot_ms, _NUM_SIZES[is_few])
        if is_few:
            mean = sum(end - start for start, end in self.ranges) // num_chunks
            costs_ms |= self._tried_as_if(mean, max_slot_ms)
        costs_ms[even.ends] = self._cost_ms(even.ends)
        limit_ms = max(max_slot_ms, even.slot_ms)
        plans = map(self._planned, sorted(costs_ms, key=costs_ms.__getitem__))
        return next(plan for plan in plans if plan.slot_ms <= limit_ms)

    def _tried(self, max_slot_ms: float, num_sizes: int) -> _Costs:
        """Return the costs of cuts in one size and, for the best of these, with other slots.

        From one that holds the size without a prefix to one that holds it at the end.
        """
        tried: _Costs = {}
        best_ms: dict[int, float] = {}
        for size in self._sizes(max_slot_ms):
            alike = self._cut(size, 0.0)
            longer_first = self._cut(size, _LONGER_FIRST * self.reach.chunk_ms(0, size))
            costs_ms = {ends: self._cost_ms(ends) for ends in (alike, longer_first)}
            best_ms[size] = min(costs_ms.values())
            tried |= costs_ms
        near_ms = _NEAR * min(best_ms.values(), default=0.0)
        near = [size for size in best_ms if best_ms[size] <= near_ms]
        for size in sorted(near, key=best_ms.__getitem__)[:num_sizes]:
            num_chunks = max(sum(end - start for start, end in set(self.ranges)) // size, 1)
            num_slots = _clamp(_GRID_CHUNKS // num_chunks // (1 + len(self._gradings)), _NUM_SLOTS)
            low_ms = self.reach.chunk_ms(0, size)
            high_ms = self.reach.chunk_ms(self._furthest - size, self._furthest)
            tried |= self.zoom(size, (low_ms, high_ms), num_slots)
        return tried

    def _tried_as_if(self, size: int, max_slot_ms: float) -> _Costs:
        """Return the costs of slots when all chunks take what those of a size do.

        SlotSearch has tried slots, but as if all chunks were of the worst size.
        """
        sizes = [known for known in self._known if known <= self._furthest]
        if not sizes:
            return {}
        reach = self.reach.of_latency(self.latency.as_if(size))
        slots_ms = [min(reach.chunk_ms(0, known), max_slot_ms) for known in sizes]
        interval_ms = min(slots_ms), _PAST * max(slots_ms)
        return dataclasses.replace(self, reach=reach).zoom(
            reach.align_tokens, interval_ms, _NUM_SLOTS[1]
        )

    def zoom(self, size: int, interval_ms: tuple[float, float], num_slots: int) -> _Costs:
        """Return the costs of the slots of a grid, and of a finer one around the best."""
        low_ms, high_ms = interval_ms
        tried: _Costs = {}
        for gradings in (self._gradings, ()):
            grid_ms = np.geomspace(low_ms, high_ms, num_slots + 1).tolist()
            costs_ms: list[float] = []
            for slot_ms in grid_ms[:-1]:
                cuts = [self._cut(size, slot_ms, grading) for grading in (0.0, *gradings)]
                tried |= {ends: self._cost_ms(ends) for ends in cuts}
                costs_ms.append(min(tried[ends] for ends in cuts))
                if num_slots < _NUM_SLOTS[1] and min(costs_ms) < min(costs_ms[-_NUM_WORSE:]):
                    break
            best = costs_ms.index(min(costs_ms))
            low_ms, high_ms = grid_ms[max(best - 1, 0)], grid_ms[best + 1]
        return tried

    @property
    def _gradings(self) -> Sequence[float]:
        """Shapes of the first chunks to try beside equal times.

        Faster stages before the slowest fill it sooner if the first chunks are short.
        """
        start, end = self.ranges[0]
        times_ms = [stage.chunk_ms(start, end) for stage in self.latency.stages]
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
            for stage in self.latency.stages
            if stage.size_ratios
            for size in stage.size_ratios.tokens
        }
        return sorted(known)

    @property
    def _furthest(self) -> int:
        """The greatest end."""
        return max(end for _, end in self.ranges)

    def _cut(self, size: int, slot_ms: float, grading: float = 0.0) -> tuple[Ends, ...]:
        """Return the chunks of all prompts."""
        spans = dict.fromkeys(self.ranges)
        cut = {span: cut_at_least(self.reach, span, size, slot_ms, grading) for span in spans}
        return tuple(cut[span] for span in self.ranges)

    def _cost_ms(self, ends: tuple[Ends, ...]) -> float:
        """Return about when the pipeline is through if it lets in only a window of chunks.

        One prompt is looked at stage by stage, prompts in a row as SlotSearch estimates them.
        """
        if len(ends) == 1:
            return self._alone_ms(*_borders(self.ranges[0], ends[0]))
        times_ms = self._times_ms(ends)
        total_ms = sum(float(own.sum()) for own in times_ms)
        longest_ms = max(float(own.max()) for own in times_ms)
        return total_ms + sum(self._fills) * longest_ms + self._waits_ms(times_ms)

    def _alone_ms(self, starts: FloatArray, stops: FloatArray) -> float:
        """Return when one prompt is through, its chunks waiting once for the window at most.

        They do if shorter ones follow on long ones, until they would be late for the slowest stage.
        """
        times_ms = chunk_times_ms(self.latency, starts, stops)
        finish_ms = finish_times_ms(times_ms, stops - starts, self.link)
        slowest = int(times_ms[:, -1].argmax())
        window = self.latency.num_stages + 1
        behind_ms = times_ms[:slowest, window:].sum(axis=0)
        began_ms = finish_ms[slowest, window:] - times_ms[slowest, window:]
        late_ms = finish_ms[-1, : len(began_ms)] + behind_ms - began_ms
        return float(finish_ms[-1, -1] + late_ms.max(initial=0.0))

    def _waits_ms(self, times_ms: Sequence[FloatArray]) -> float:
        """Return how long first chunks of prompts wait for long ones of those before them.

        A chunk enters when the one that is a window before it has left. Where that is a prompt's
        last, and those between are the next one's short ones, it could have entered sooner.
        """
        before, behind = self._fills
        num_between = self.latency.num_stages
        waits_ms = 0.0
        for one, other in itertools.pairwise(times_ms):
            head_ms = float(other[:num_between].mean())
            path_ms = before * head_ms + (behind + 1) * float(one.max())
            waits_ms += max(path_ms - (num_between + 1) * head_ms, 0.0)
        return waits_ms

    @property
    def _fills(self) -> tuple[float, float]:
        """Time of a chunk on the stages before the slowest and behind it, in times on it."""
        span = max(self.ranges, key=lambda span: span[1] - span[0])
        times_ms = [stage.chunk_ms(*span) for stage in self.latency.stages]
        slowest = times_ms.index(max(times_ms))
        before_ms, behind_ms = sum(times_ms[:slowest]), sum(times_ms[slowest + 1 :])
        return before_ms / times_ms[slowest], behind_ms / times_ms[slowest]

    def _times_ms(self, ends: tuple[Ends, ...]) -> list[FloatArray]:
        """Return the times of each prompt's chunks, each on its slowest stage."""
        spans = tuple(zip(self.ranges, ends, strict=True))
        times_ms = {}
        for span, own in dict.fromkeys(spans):
            starts, stops = _borders(span, own)
            times_ms[span, own] = self.latency.chunks_ms(starts, stops)
        return [times_ms[each] for each in spans]

    def _planned(self, ends: tuple[Ends, ...]) -> SlotPlan:
        """Return the plan with its figures; its slot is by reach, as microbatches are filled."""
        borders = [_borders(span, own) for span, own in zip(self.ranges, ends, strict=True)]
        starts, stops = (np.concatenate(own) for own in zip(*borders, strict=True))
        return SlotPlan(
            slot_ms=float(self.reach.chunks_ms(starts, stops).max()),
            finish_ms=plan_finish_ms(self.latency, starts, stops, self.link),
            ends=ends,
        )


def _borders(span: Range, ends: Ends) -> tuple[FloatArray, FloatArray]:
    """Return where the chunks of a prompt start and end."""
    borders = np.array([span[0], *ends], dtype=np.float64)
    return borders[:-1], borders[1:]


def _clamp(value: int, limits: tuple[int, int]) -> int:
    """Return the value, or the limit that it is beyond."""
    return min(max(value, limits[0]), limits[1])
