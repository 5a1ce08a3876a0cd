"""Finds the slot, the longest time of a chunk, with which a pipeline is done soonest. Pure.

A pipeline of equal stages is done after the sum of all chunk times and, to fill and drain,
num_stages - 1 slots. Long chunks fill slowly, short ones pay the fixed time more often. For one
slot the least sum is found from the end: each chunk begins as early as the slot allows, which makes
chunks fewest and their prefixes shortest. So only the slot is searched: all there can be for short
prompts, else ever finer grids. The best few are evened out, so that no short piece is left, and
judged by when they leave the pipeline with its unequal stages, its links and its window.
Source: https://arxiv.org/abs/2102.07988 (the objective)
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from scheduler.chunk_ramps import Ramps
from scheduler.chunk_reach import ChunkReach, constant_ms
from scheduler.latency_model import FloatArray, StageLatency
from scheduler.prompt_cuts import Range, cut_from_the_end, cut_in_shares, even_out
from scheduler.slot_plan import SlotPlan
from scheduler.windowed_pipeline import WindowedPipeline

_MAX_EXACT_SLOTS = (4096, 256)
"""With no more slots than this all are tried, and the plan is the best there is.

Fewer where chunks may have to wait for the window: bounds, which leave out most, are looser.
"""
_GRID_SLOTS = (8, 64)
"""Least and most of one grid: fewer where there are many chunks, to take about the same time."""
_GRID_CHUNKS = 6000
"""Chunks to look at in one grid of slots."""
_NUM_GRIDS = 3
"""One less with the fewest slots: among so many chunks the finish hardly depends on the slot."""
_GRID_RANGE = (0.7, 2.5)
"""Around the slot of equal-time cuts."""
_LEAST_SLOT_MS = 1e-9
_MAX_CHUNKS = 2048
"""More chunks than about this are not planned: they would save under 0.05 % a stage."""
_NUM_JUDGED = (2, 16)
"""Least and most plans that are judged by their exact finish."""
_JUDGED_CHUNKS = 1500
"""Chunks to look at when judging."""
_MANY_CHUNKS = 150
"""From here on one chunk more or less hardly matters."""
_SHAPED_ELSEWHERE = 400
"""From here on another search's shapes are as good: 0.01 % lie between them."""
_SHAPED_CHUNKS = (1.0, 1.3, 0.75, 1.15, 0.87, 1.6, 0.6, 2.0, 0.45)
"""Numbers of chunks of unequal times to try, to that of equal ones; of many chunks three."""
_GRADINGS = (0.0, 0.35, 0.7, 1.0)
"""From chunks of equal time to chunks of equal size."""

_NUM_NEAR = 3
"""Numbers of chunks to try on either side of the grid's best."""
_NUM_HALVINGS = 12


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SlotSearch:
    """One search, for the rest of some prompts."""

    pipeline: WindowedPipeline
    reach: ChunkReach
    """Of that pipeline."""
    ranges: tuple[Range, ...]
    """[start, end) of each prompt, none empty, at least one."""
    is_last: bool = True
    """Whether no other search follows, which would shape many chunks anew."""

    def best(self, max_slot_ms: float = math.inf) -> SlotPlan:
        """Return the plan that is through first, of chunks of max_slot_ms where that can be."""
        limit_ms = max(max_slot_ms, self.reach.least_ms)
        slots_ms = self._exact_slots_ms()
        if slots_ms is None:
            finish_ms = self._zoom(limit_ms)
        else:
            finish_ms = self._try_all(min(slot_ms, limit_ms) for slot_ms in slots_ms)
        order = sorted(finish_ms, key=finish_ms.__getitem__)
        num_chunks = self._num_chunks(order[0])
        judged = order[: _clamp(_JUDGED_CHUNKS // num_chunks, _NUM_JUDGED)]
        best = min(self._plans(judged), key=lambda plan: plan.finish_ms)
        is_left = not self.is_last and num_chunks > _SHAPED_ELSEWHERE
        is_even = len(set(self.pipeline.latency.stages)) == 1
        return best if is_even or is_left else self._shaped(best, limit_ms)

    def _exact_slots_ms(self) -> list[float] | None:
        """Return the times of all chunks that there could be, or None if they are too many."""
        align = self.reach.align_tokens
        distinct = dict.fromkeys(self.ranges)
        num_cells = [-(-end // align) - start // align for start, end in distinct]
        most = _MAX_EXACT_SLOTS[self.pipeline.may_wait]
        if sum(cells * (cells + 1) // 2 for cells in num_cells) > most:
            return None
        slots_ms: list[float] = []
        for start, end in distinct:
            inner = np.arange((start // align + 1) * align, end, align)
            borders = np.concatenate([[start], inner, [end]]).astype(np.float64)
            first, last = np.triu_indices(len(borders), 1)
            slots_ms += self.reach.chunks_ms(borders[first], borders[last]).tolist()
        return slots_ms

    def _try_all(self, slots_ms: Iterable[float]) -> dict[float, float]:
        """Estimate all slots, but for those that cannot be better than the best so far."""
        bounds_ms = {slot_ms: self._bound_ms(slot_ms) for slot_ms in slots_ms}
        finish_ms: dict[float, float] = {}
        best_ms = math.inf
        for slot_ms in sorted(bounds_ms, key=bounds_ms.__getitem__):
            if bounds_ms[slot_ms] > best_ms:
                break
            finish_ms[slot_ms] = self._estimate_ms(slot_ms)
            best_ms = min(best_ms, finish_ms[slot_ms])
        return finish_ms

    def _zoom(self, limit_ms: float) -> dict[float, float]:
        """Estimate the slots of a grid, and of finer ones between the best one's neighbours."""
        low_ms, high_ms = (min(slot_ms, limit_ms) for slot_ms in self._interval_ms())
        if low_ms == high_ms:
            return {low_ms: self._estimate_ms(low_ms)}
        num_slots = _clamp(_GRID_CHUNKS // self._num_chunks(low_ms), _GRID_SLOTS)
        finish_ms: dict[float, float] = {}
        for _ in range(_NUM_GRIDS if num_slots > _GRID_SLOTS[0] else _NUM_GRIDS - 1):
            grid_ms = np.geomspace(low_ms, high_ms, num_slots).tolist()
            finish_ms |= {s: self._estimate_ms(s) for s in grid_ms if s not in finish_ms}
            best = min(range(num_slots), key=lambda i: finish_ms[grid_ms[i]])
            low_ms, high_ms = grid_ms[max(best - 1, 0)], grid_ms[min(best + 1, num_slots - 1)]
        least_ms = self._least_slots_ms(min(finish_ms, key=finish_ms.__getitem__))
        finish_ms |= {s: self._estimate_ms(min(s, limit_ms)) for s in least_ms if s <= limit_ms}
        return finish_ms

    def _least_slots_ms(self, near_ms: float) -> Iterator[float]:
        """Yield the least slots for some numbers of chunks, which a grid of few chunks may miss."""
        num_near = self._num_chunks(near_ms)
        if num_near > _MANY_CHUNKS:
            return
        for num_chunks in self._numbers_near(num_near):
            low_ms, high_ms = near_ms / 2, near_ms * 2
            for _ in range(_NUM_HALVINGS):
                slot_ms = math.sqrt(low_ms * high_ms)
                if self._num_chunks(slot_ms) <= num_chunks:
                    high_ms = slot_ms
                else:
                    low_ms = slot_ms
            yield high_ms

    def _numbers_near(self, num_chunks: int) -> list[int]:
        """Return numbers of chunks to try: near one, and full windows where chunks wait for it."""
        numbers = {*range(max(num_chunks - _NUM_NEAR, 1), num_chunks + _NUM_NEAR + 1)}
        window = self.pipeline.window
        if window is not None and self.pipeline.may_wait:
            num_full = num_chunks // window
            numbers |= {window * full for full in range(max(num_full - 1, 1), num_full + 3)}
        return sorted(numbers)

    def _num_chunks(self, slot_ms: float) -> int:
        """Return how many chunks of a slot at most all different prompts need."""
        return sum(
            len(cut_from_the_end(self.reach, span, slot_ms)) - 1 for span in set(self.ranges)
        )

    def _interval_ms(self) -> tuple[float, float]:
        """Return between which slots the best one is, by what equal-time cuts would need."""
        stage = self.reach.slowest(*max(self.ranges, key=lambda span: span[1] - span[0]))
        grows_ms = sum(_grows_ms(stage, *span) for span in self.ranges)
        middle = sum(start + end for start, end in self.ranges) / (2 * len(self.ranges))
        per_chunk_ms = constant_ms(stage) + stage.ms_per_prefix_token * middle
        longest = max(
            ((self.reach.earliest_start(start, end, math.inf), end) for start, end in self.ranges),
            key=lambda span: self.reach.chunk_ms(*span),
        )
        longest_ms = self.reach.chunk_ms(*longest)
        num_fills = self._fill_ms(*longest) / longest_ms if longest_ms else 0.0
        if not num_fills:
            return (max(longest_ms, _LEAST_SLOT_MS),) * 2
        full_ms = self.pipeline.full_ms(num_fills)
        best_ms = per_chunk_ms + math.sqrt(per_chunk_ms * grows_ms / num_fills)
        least_ms = max(per_chunk_ms + grows_ms / _MAX_CHUNKS, self.reach.least_ms)
        low_ms = min(max(best_ms * _GRID_RANGE[0], least_ms), longest_ms)
        high_ms = min(max(best_ms, low_ms, full_ms) * _GRID_RANGE[1], longest_ms)
        return max(low_ms, _LEAST_SLOT_MS), max(high_ms, _LEAST_SLOT_MS)

    def _fill_ms(self, start: int, end: int) -> float:
        """Return what a chunk takes on all stages but the slowest."""
        times_ms = [stage.chunk_ms(start, end) for stage in self.pipeline.latency.stages]
        return sum(times_ms) - max(times_ms)

    def _bound_ms(self, slot_ms: float) -> float:
        """Return what no estimate for slot_ms, if it is the longest chunk's time, can be under."""
        stage = self.reach.rhythm[0]
        fixed_ms = constant_ms(stage)
        room_ms = slot_ms - fixed_ms
        bound_ms = 0.0
        for start, end in self.ranges:
            grows_ms = _grows_ms(stage, start, end)
            num_chunks = math.ceil(grows_ms / room_ms - 1e-9) if room_ms > 0 else 1
            bound_ms += grows_ms + max(num_chunks, 1) * fixed_ms
        return bound_ms + (self._num_equal - 1) * slot_ms

    @property
    def _num_equal(self) -> int:
        """Stages that are as slow as the slowest with any chunk, at least 1."""
        return max(self.pipeline.latency.stages.count(stage) for stage in self.reach.rhythm)

    def _estimate_ms(self, slot_ms: float) -> float:
        """Return about when the pipeline would be through.

        On its way through stages and chunks the critical path sees each chunk on one stage, and at
        each change to another stage one chunk twice: at the latest the sum over chunks on their
        slowest stage, and one of the longest chunks on every other stage. Where chunks may wait for
        the window it is, if that is more, what chunks that are alike would take: so many windows as
        are needed one after the other, and the last one filled.
        """
        total_ms = longest_ms = fill_ms = 0.0
        num_chunks = 0
        for span, count in Counter(self.ranges).items():
            borders = cut_from_the_end(self.reach, span, slot_ms)
            times_ms = self.reach.chunks_ms(borders[:-1], borders[1:])
            total_ms += count * float(times_ms.sum())
            num_chunks += count * len(times_ms)
            longest = int(times_ms.argmax())
            if times_ms[longest] > longest_ms:
                longest_ms = float(times_ms[longest])
                fill_ms = self._fill_ms(int(borders[longest]), int(borders[longest + 1]))
        travel_ms = self.pipeline.travel_ms
        window = self.pipeline.window
        if window is None or not self.pipeline.may_wait or not longest_ms:
            return total_ms + fill_ms + travel_ms
        mean_ms = total_ms / num_chunks
        path_ms = mean_ms * (1 + fill_ms / longest_ms) + travel_ms
        waited_ms = -(-num_chunks // window) * path_ms + (num_chunks - 1) % window * mean_ms
        return max(total_ms + fill_ms + travel_ms, waited_ms)

    def _plans(self, slots_ms: Sequence[float]) -> Iterator[SlotPlan]:
        """Yield the plans of slots, evened out and as they were found."""
        least_ms = math.inf
        for slot_ms in slots_ms:
            spans = dict.fromkeys(self.ranges)
            found = {span: cut_from_the_end(self.reach, span, slot_ms) for span in spans}
            evened = {span: even_out(self.reach, borders) for span, borders in found.items()}
            for borders in (evened, found):
                plan = self._judged(tuple(borders[span] for span in self.ranges), least_ms)
                least_ms = min(least_ms, plan.finish_ms)
                yield plan

    def _shaped(self, best: SlotPlan, limit_ms: float) -> SlotPlan:
        """Let chunk times differ over the first and the last prompt where that is better.

        Only stages that are unequal gain by it: faster ones before the slowest fill it sooner with
        short chunks, and later it need not wait for long ones.
        """
        limit_ms = max(limit_ms, best.slot_ms)
        last = len(self.ranges) - 1
        for index in dict.fromkeys((0, last)):
            span = self.ranges[index]
            ramps = Ramps.of_pipeline(self.pipeline.latency, span[0], int(best.borders[index][1]))
            own = ramps.at(is_first=index == 0, is_last=index == last)
            num_chunks = len(best.borders[index]) - 1
            ratios = _SHAPED_CHUNKS[: 3 if num_chunks > _MANY_CHUNKS else None]
            level = [np.ones(round(num_chunks * ratio) or 1) for ratio in ratios]
            grading, shares = 0.0, level[0]
            for tried in itertools.product(_GRADINGS, level):
                plan = self._reshaped(best, index, *tried)
                if plan and plan.slot_ms <= limit_ms and plan.finish_ms < best.finish_ms:
                    best, (grading, shares) = plan, tried
            with_ramps = dict.fromkeys([(grading, len(shares)), (0.0, num_chunks)])
            for tried in ((kept, ramp) for kept, num in with_ramps for ramp in own.shares(num)):
                plan = self._reshaped(best, index, *tried)
                if plan and plan.slot_ms <= limit_ms and plan.finish_ms < best.finish_ms:
                    best = plan
        return best

    def _reshaped(
        self, plan: SlotPlan, index: int, grading: float, shares: FloatArray
    ) -> SlotPlan | None:
        """Return a plan with one prompt cut anew; None if a chunk would be too long to hold."""
        borders = cut_in_shares(self.reach, self.ranges[index], shares, grading)
        if borders is None:
            return None
        cut = (*plan.borders[:index], borders, *plan.borders[index + 1 :])
        return self._judged(cut, plan.finish_ms)

    def _judged(self, borders: tuple[FloatArray, ...], most_ms: float) -> SlotPlan:
        """Return the plan with its figures; one that is through later than at most_ms is none."""
        starts = np.concatenate([own[:-1] for own in borders])
        stops = np.concatenate([own[1:] for own in borders])
        return SlotPlan(
            slot_ms=float(self.reach.chunks_ms(starts, stops).max()),
            finish_ms=self.pipeline.finish_ms(starts, stops, most_ms),
            borders=borders,
        )


def _grows_ms(stage: StageLatency, start: int, end: int) -> float:
    """Return what tokens and pairs of [start, end) take, however they are cut."""
    return (end - start) * (stage.ms_per_token + stage.ms_per_pair * (end + start))


def _clamp(value: int, limits: tuple[int, int]) -> int:
    """Return the value, or the limit that it is beyond."""
    return min(max(value, limits[0]), limits[1])
