"""How much prefill a microbatch holds if it is to take a slot's time. Pure; one a route.

The slot is the longest time of a microbatch with which all that is left of the admitted prompts is
done soonest. Of a second of work or more it is searched for, with the borders of the longest
prompts (chunk_optimal.py), as often as a second of work has come to it and an eighth of all: a
search may take 50 ms. Of less, and in between, it is what equal chunks would need, and where a
prompt is alone the best of some numbers of chunks near, which takes a millisecond. Microbatches are
then filled up to the slot, so that decode rows and short prompts shorten a long prompt's chunk.
The limit of a chunk's time is for those who wait for it: others that decode or prefill. A prompt
that is alone is cut as suits it, or on a slow machine it would pay for short chunks to no end.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

import numpy as np

from scheduler.chunk_optimal import OptimalChunks
from scheduler.chunk_reach import ChunkReach, constant_ms
from scheduler.even_slot import EvenSlot
from scheduler.latency_model import PipelineLatency, Work
from scheduler.part import Part, take_chunk
from scheduler.prefill import Prefill
from scheduler.prefill_order import RIDERS_SHARE, Candidate
from scheduler.prefill_turns import PrefillTurns
from scheduler.prompt_cuts import graded_cuts
from scheduler.request import Request

_SEARCHED_MS = 1000.0
"""So much work must be new for a search."""
_SEARCHED_SHARE = 0.125
"""And this share of all that is left."""
_MAX_RANGES = 8
"""So many of the longest prompts a search looks at."""
_FAR_SHARE = 0.5
"""Of the limit: a slot that is shorter would be the same without it."""
_ROWS_FACTOR = 2.0
_ROUNDING_MS = 1e-6
_TAIL_SHARE = 0.25
"""Of a chunk: less than that and a cell may be taken with it."""
_PIECE_SHARE = 0.25
"""A long prompt gets no less than this of a slot behind others: a mere piece is not worth it."""


class SlotBudget:
    """A slot's time, and the tokens that the stages' buffers hold."""

    def __init__(self, strategy: OptimalChunks, max_tokens: int) -> None:
        """Plan with strategy.latency; hold max_tokens >= 1."""
        self._max_tokens = max_tokens
        self._turns = PrefillTurns()
        """In ms by the model, of all microbatches with prefill."""
        self._limit_ms = strategy.max_chunk_ms
        """Of the slot while others wait."""
        self._plan_with(strategy)

    @property
    def slot_ms(self) -> float:
        """Of the last microbatch; 0 before the first."""
        return self._slot_ms

    @property
    def align_tokens(self) -> int:
        """What borders are multiples of when a chunk is alone in its microbatch."""
        return self._reach.align_tokens

    def begin(self, prefill: Prefill) -> None:
        """Let it wait; it is cut when the next microbatch is filled."""
        self._turns.begin(prefill)

    def fill(
        self, prefilling: Sequence[Request], *, beside: Work, most: int, is_awaited: bool
    ) -> list[Part]:
        """Take chunks as long as there is time; the first is at least one aligned cell."""
        self._limit(self._limit_ms if is_awaited or len(prefilling) > 1 else None)
        known = self._candidates
        candidates = [known.get(request) or self._look_at(request) for request in prefilling]
        beside_ms = self._reach.beside_ms(beside)
        self._is_alone = len(candidates) == 1 and not (beside_ms or is_awaited)
        self._plan(candidates, beside_ms)
        parts: list[Part] = []
        left_ms = self._slot_ms - beside_ms
        left_tokens = self._max_tokens
        is_as_planned = False
        reach = self._fine if beside_ms else self._reach
        for request in self._turns.order(candidates, max(left_ms - self._paid_ms, self._cell_ms)):
            is_full = len(parts) == most or left_tokens <= 0 or left_ms <= self._paid_ms
            if parts and is_full:
                break
            prefill = request.prefill
            if parts and not prefill.is_given and self._is_hopeless(known[request], left_ms):
                continue
            end = self._end(request, reach, left_ms, left_tokens, is_first=not parts)
            if end is None or (is_as_planned and end < prefill.end):
                continue
            is_as_planned = is_as_planned or self._is_as_planned(request, end)
            left_ms -= self._reach.grows_ms(prefill.next_start, end)
            left_tokens -= end - prefill.next_start
            parts.append(take_chunk(request, end))
            del known[request]
            reach = self._fine
        sent_ms = self._slot_ms - beside_ms - left_ms
        self._turns.sent(parts, max(self._reach.least_ms, sent_ms))
        return parts

    def leave(self, request: Request) -> None:
        """Plan anew if much of what was planned will not come."""
        self._turns.leave(request)
        self._candidates.pop(request, None)
        self._cut_to_ms.pop(request, None)
        if request not in self._searched:
            return
        self._searched.remove(request)
        prefill = request.prefill
        if self._reach.grows_ms(prefill.next_start, prefill.end) > _SEARCHED_SHARE * self._total_ms:
            self._plan_with(self._strategy)

    def replace(self, latency: PipelineLatency, /) -> None:
        """Plan all that is left anew."""
        self._plan_with(dataclasses.replace(self._strategy, latency=latency))

    def _plan_with(self, strategy: OptimalChunks) -> None:
        """Forget what was planned."""
        self._strategy = strategy
        self._reach = strategy.reach
        self._fine = strategy.fine_reach
        self._even = EvenSlot.of(strategy, self._max_tokens)
        self._paid_ms = self._even.paid_ms
        self._least_paid_ms = min(constant_ms(stage) for stage in self._reach.rhythm)
        self._cell_ms = self._reach.grows_ms(0, self._reach.align_tokens)
        """What the least chunk grows by; one is taken even if there is no time for it."""
        self._is_alone = False
        """Whether one prompt prefills, and nobody decodes."""
        self._candidates: dict[Request, Candidate] = {}
        """Those that have waited before, as they still are."""
        self._searched: set[Request] = set()
        """Those that the last search looked at, as long as they run."""
        self._cut_to_ms: dict[Request, float] = {}
        """The slot with which each was cut, as long as it runs."""
        self._total_ms = 0.0
        """What was left when the last microbatch was filled."""
        self._slot_ms = 0.0

    def _limit(self, limit_ms: float | None) -> None:
        """Take another limit of the slot; plan anew where it may make a difference."""
        if limit_ms == self._strategy.max_chunk_ms or self._limit_ms is None:
            return
        strategy = dataclasses.replace(self._strategy, max_chunk_ms=limit_ms)
        share = _FAR_SHARE if limit_ms is None else 1.0
        if self._slot_ms > share * self._limit_ms:
            self._plan_with(strategy)
        else:
            self._strategy = strategy

    def _look_at(self, request: Request) -> Candidate:
        """Count what an output has left in time on the slowest stage."""
        prefill = request.prefill
        candidate = self._candidates[request] = Candidate(
            request=request,
            rest=self._reach.grows_ms(prefill.next_start, prefill.end),
            total=self._reach.grows_ms(prefill.start, prefill.end),
            began_at=prefill.began_at,
        )
        return candidate

    def _plan(self, candidates: Sequence[Candidate], beside_ms: float) -> None:
        """Find the slot, and wanted borders for those that have none.

        Decode rows take half of a slot at most: many of them, as far as may be, make it longer.
        """
        self._total_ms = sum([candidate.rest for candidate in candidates])
        news = [each for each in candidates if each.request not in self._searched]
        news_ms = sum([each.rest for each in news])
        if news_ms >= max(_SEARCHED_MS, _SEARCHED_SHARE * self._total_ms):
            self._search(candidates)
            news = []
        wanted_ms = [self._cut_to_ms.get(each.request, 0.0) for each in candidates]
        slot_ms = max(self._even_slot_ms(news), *wanted_ms)
        limit_ms = self._strategy.max_chunk_ms or math.inf
        slot_ms = min(slot_ms, limit_ms, self._longest_ms(candidates) + beside_ms)
        slot_ms = max(slot_ms, self._reach.least_ms)
        if self._is_alone and candidates[0].request not in self._cut_to_ms:
            slot_ms = self._cut_alone(candidates[0], slot_ms)
        self._slot_ms = max(slot_ms, min(_ROWS_FACTOR * beside_ms, limit_ms))
        for candidate in candidates:
            if candidate.request not in self._cut_to_ms:
                self._cut(candidate.request, slot_ms)

    def _search(self, candidates: Sequence[Candidate]) -> None:
        """Look for the best slot, and for the best borders of the longest prompts."""
        ordered = sorted(candidates, key=lambda candidate: -candidate.rest)
        requests = [candidate.request for candidate in ordered]
        longest = requests[:_MAX_RANGES]
        ranges = [(request.prefill.next_start, request.prefill.end) for request in longest]
        plan = self._strategy.cut_all(ranges)
        self._searched = set(requests)
        for request, (start, _), ends in zip(longest, ranges, plan.ends, strict=True):
            request.prefill.want((start, *ends))
            self._cut_to_ms[request] = plan.slot_ms
        for request in requests[_MAX_RANGES:]:
            self._cut_to_ms.pop(request, None)

    def _cut(self, request: Request, slot_ms: float) -> None:
        """Want the rest of a prompt in as few chunks of about equal time as can be."""
        start, end = request.prefill.next_start, request.prefill.end
        request.prefill.want((start, *self._strategy.cut_to(start, end, slot_ms)))
        self._cut_to_ms[request] = slot_ms

    def _cut_alone(self, candidate: Candidate, slot_ms: float) -> float:
        """Want the rest of a prompt as is best without others; return its longest chunk's time."""
        prefill = candidate.request.prefill
        start, end = prefill.next_start, prefill.end
        plan = self._strategy.cut_alone(start, end, slot_ms)
        prefill.want((start, *plan.ends[0]))
        self._cut_to_ms[candidate.request] = plan.slot_ms
        return plan.slot_ms

    def _end(
        self,
        request: Request,
        reach: ChunkReach,
        cap_ms: float,
        left_tokens: int,
        *,
        is_first: bool,
    ) -> int | None:
        """Return where the next chunk ends, or None if none fits that is worth it.

        Beside rows and other prompts, which leave no room for what was planned, borders are fine:
        a chunk that had to be as short as the next coarse one would leave much of a slot empty.
        """
        prefill = request.prefill
        start, end = prefill.next_start, prefill.end
        if prefill.is_given:
            given = prefill.wanted_end() or end
            is_in_time = is_first or self._reach.fits(start, given, cap_ms)
            return given if is_in_time and given - start <= left_tokens else None
        furthest = start + left_tokens
        reached = min(reach.latest_end(start, cap_ms), end)
        if reached > furthest:
            reached = furthest // reach.align_tokens * reach.align_tokens
        if reached <= start or not (is_first or self._is_worth(start, reached, end, cap_ms)):
            return None
        is_rider = self._reach.grows_ms(start, end) <= RIDERS_SHARE * self._slot_ms
        if reached == end and is_rider and not self._is_alone:
            return end
        wanted = prefill.wanted_end()
        if wanted is not None and wanted <= reached:
            return wanted
        little_tokens = self._fine.align_tokens
        return _tidy_end(reach, (start, reached), min(end, furthest), end, little_tokens)

    def _is_as_planned(self, request: Request, end: int) -> bool:
        """Say whether a chunk is one of a plan whose chunks may be meant to be below the slot.

        Where sizes make a difference they are, and another long prompt's would only delay it.
        """
        prefill = request.prefill
        is_searched = self._strategy.has_sizes and request in self._searched
        return is_searched and end == prefill.wanted_end() and end < prefill.end

    def _is_hopeless(self, candidate: Candidate, left_ms: float) -> bool:
        """Say whether what is left of a slot holds a mere piece and surely not all of the rest."""
        left_ms -= self._least_paid_ms
        return left_ms < _PIECE_SHARE * self._slot_ms and candidate.rest > left_ms + _ROUNDING_MS

    def _is_worth(self, start: int, reached: int, end: int, cap_ms: float) -> bool:
        """Say whether a chunk is in time, and the last one or no mere piece."""
        is_piece = self._reach.grows_ms(start, reached) < _PIECE_SHARE * self._slot_ms
        return self._reach.fits(start, reached, cap_ms) and (reached == end or not is_piece)

    def _longest_ms(self, candidates: Sequence[Candidate]) -> float:
        """Return what a microbatch takes that is full, or has all that there is."""
        end = max(self._max_tokens, *[each.request.prefill.end for each in candidates])
        full_ms = self._reach.chunk_ms(end - self._max_tokens, end)
        return min(full_ms, self._paid_ms + self._total_ms)

    def _even_slot_ms(self, news: Sequence[Candidate]) -> float:
        """Return the slot of equal chunks, and of a cell of news, whom no search has looked at."""
        end = max([each.request.prefill.end for each in news], default=0)
        cell_ms = self._reach.grows_ms(max(end - self._reach.align_tokens, 0), end)
        return self._even.slot_ms(self._total_ms, cell_ms)


def _tidy_end(
    reach: ChunkReach, chunk: tuple[int, int], furthest: int, end: int, little_tokens: int
) -> int:
    """Leave no small piece behind a chunk up to reached, which may not go beyond furthest.

    Less than a cell is taken as well, if it is not much; and two chunks of which the last would
    be less than half the other are made alike.
    """
    start, reached = chunk
    align, rest = reach.align_tokens, end - reached
    is_little = rest < min(max(little_tokens, _TAIL_SHARE * (reached - start)), align)
    if is_little and end <= furthest:
        return end
    if rest >= (reached - start) / 2:
        return reached
    half = np.array([0.5])
    cut = float(graded_cuts(reach.slowest(start, end), (start, end), half)[0])
    return min(math.ceil(cut / align) * align, reached)
