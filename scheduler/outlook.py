"""How long a prompt will take until it is computed, by the latency model. Pure.

Prompts are served in the order of prefill_order.py: behind those of higher priority and those that
began earlier and are no longer, before those that began later and are no shorter. Others are taken
to share the slots with it, each getting as much until it is done. A pipeline that is full brings
one chunk a slot, and the last chunk has to pass all stages: what it takes longer than those that
are passing now comes on top. Prompts of one chunk ride in microbatches that others pay for; they
count with what they add, and with their share of what these pay. Those who decode ride along: they
make microbatches longer, or chunks shorter and so more.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

from scheduler.decode_groups import DecodeGroups
from scheduler.latency_model import PipelineLatency, Work
from scheduler.prefill import Prefill
from scheduler.request import Request
from scheduler.rows_beside import NO_ROWS, RowsBeside


def rest_ms(prefill: Prefill, latency: PipelineLatency, rows: RowsBeside = NO_ROWS) -> float:
    """Return the time of the chunks that are not done, as if they were alike; 0 if all are."""
    num_in_flight = prefill.num_in_flight
    num_planned = prefill.num_left - num_in_flight
    left_ms = 0.0
    if num_in_flight:
        sent = _mean_chunk(prefill.done_tokens, prefill.next_start, num_in_flight)
        left_ms += num_in_flight * rows.sent_ms(sent, latency)
    if num_planned:
        planned = _mean_chunk(prefill.next_start, prefill.end, num_planned)
        left_ms += num_planned * rows.planned_ms(planned, latency)
    return left_ms


def time_left_ms(
    own: Prefill,
    others_ms: Iterable[float],
    latency: PipelineLatency,
    *,
    window: int,
    rows: RowsBeside = NO_ROWS,
    ahead_ms: float = 0.0,
) -> float:
    """Return the time until own is done; 0 if it is.

    Args:
        own: the prompt in question.
        others_ms: the rest of each that shares the slots with it.
        latency: of the pipeline.
        window: microbatches in flight at most, >= 1.
        rows: of those who decode meanwhile.
        ahead_ms: the rest of all that are served before it.
    """
    own_ms = rest_ms(own, latency, rows)
    if not own_ms:
        return 0.0
    shared_ms = own_ms + sum([min(other_ms, own_ms) for other_ms in others_ms])
    slowed = max(latency.num_stages / window, 1.0)
    fill_ms = (latency.num_stages - 1) * _longer_ms(own, own_ms / own.num_left, latency, rows)
    return (ahead_ms + shared_ms) * slowed + fill_ms


def _longer_ms(own: Prefill, mean_ms: float, latency: PipelineLatency, rows: RowsBeside) -> float:
    """Return how much longer the last chunk takes a stage than what the pipeline is filled with.

    That is nothing of own if it has nothing in flight, and all of a mean chunk comes on top. Where
    chunks make room for rows, all microbatches are alike.
    """
    if not own.num_in_flight:
        return mean_ms
    if rows.shorten_chunks:
        return 0.0
    last = latency.chunk_ms(own.last_start, own.end)
    return max(last - latency.chunk_ms(own.done_tokens, own.sent_ends[own.num_done]), 0.0)


def _mean_chunk(start: int, end: int, num_chunks: int) -> Work:
    """Return what each of so many chunks of [start, end) asks for, as if they were alike."""
    return Work(
        prefix_tokens=(start + end) // 2,
        new_tokens=(end - start) // num_chunks,
        pairs=(end * end - start * start) // num_chunks,
    )


class _Rest(NamedTuple):
    """What was left of a prefill after so many changes; a tuple, because many are made."""

    prefill: Prefill
    num_changes: int
    ms: float
    mean_ms: float
    """Of a chunk of it."""
    grows_ms: float
    """What it adds to microbatches that others pay for, if it is one chunk; else 0."""
    priority: int
    length: int
    """Tokens with those that are done."""
    began: tuple[float, int, int]
    """What sorts prompts by when they began."""

    @classmethod
    def of(cls, request: Request, latency: PipelineLatency, rows: RowsBeside) -> _Rest:
        """Work out what is left of an output."""
        prefill, (priority, arrival, child) = request.prefill, request.rank
        ms = rest_ms(prefill, latency, rows)
        grows_ms = 0.0
        if prefill.num_left == 1:
            own = Work.of_chunk(prefill.done_tokens, prefill.end)
            grows_ms = max([stage.grows_ms(own) for stage in latency.stages])
        return cls(
            prefill=prefill,
            num_changes=prefill.num_changes,
            ms=ms,
            mean_ms=ms / max(prefill.num_left, 1),
            grows_ms=grows_ms,
            priority=-priority,
            length=prefill.end - prefill.start,
            began=(prefill.began_at, arrival, child),
        )


class Outlook:
    """How long the prompts of a route will take; looked at once for each acknowledgement.

    What is left of a prompt is worked out anew only if it, the rows or the latency have changed.
    """

    def __init__(self, *, window: int, shorten_chunks: bool) -> None:
        """Look at a pipeline with so many microbatches in flight at most, >= 1.

        shorten_chunks says whether chunks make room for those who decode.
        """
        self._window = window
        self._shorten_chunks = shorten_chunks
        self._is_fresh = False
        self._rests: dict[Request, _Rest] = {}
        """Of each in PREFILL at the last look."""
        self._latency: PipelineLatency | None = None
        """At the last look."""
        self._slowest: PipelineLatency | None = None
        """Its stages that can be the slowest."""
        self._rows = NO_ROWS
        self._paid_ratio = math.inf
        """What microbatches take over what chunks add to them."""

    def forget(self) -> None:
        """Look anew when it is asked next."""
        self._is_fresh = False

    def left_ms(
        self,
        request: Request,
        prefilling: Iterable[Request],
        groups: DecodeGroups,
        latency: PipelineLatency,
    ) -> float:
        """Return the time until the known tokens of an output in PREFILL are computed, >= 0.

        Args:
            request: the output.
            prefilling: all outputs in PREFILL.
            groups: of those who decode.
            latency: of the pipeline.
        """
        if not self._is_fresh:
            self._look(prefilling, groups, latency)
        ahead_ms, others_ms = self._before(self._rests[request])
        return time_left_ms(
            request.prefill,
            others_ms,
            latency,
            window=self._window,
            rows=self._rows,
            ahead_ms=ahead_ms,
        )

    def _before(self, own: _Rest) -> tuple[float, list[float]]:
        """Return the rest of all that are served before an output, and of each beside it."""
        ahead_ms, beside_ms = 0.0, []
        for rest in self._rests.values():
            is_earlier, is_longer = rest.began < own.began, rest.length > own.length
            if rest.priority != own.priority:
                ahead_ms += self._taken_ms(rest) if rest.priority > own.priority else 0.0
            elif is_earlier and not is_longer:
                ahead_ms += self._taken_ms(rest)
            elif is_earlier or rest.length < own.length:
                beside_ms.append(self._taken_ms(rest))
        return ahead_ms, beside_ms

    def _taken_ms(self, rest: _Rest) -> float:
        """Return what the rest of another takes; of one chunk its share of a microbatch."""
        return min(rest.ms, rest.grows_ms * self._paid_ratio) if rest.grows_ms else rest.ms

    def _share_what_is_paid(self, latency: PipelineLatency) -> None:
        """Find what microbatches take, over what the chunks in them add.

        They are as long as the longest chunk, or as short ones together, which are sent before
        what they pay is more than half of it.
        """
        paid_ms = max([stage.edge_ms + stage.fixed_ms for stage in latency.stages])
        rests = self._rests.values()
        longest_ms = max([rest.mean_ms for rest in rests], default=0.0)
        together_ms = min(sum([rest.grows_ms for rest in rests]), paid_ms)
        slot_ms = max(longest_ms, paid_ms + together_ms)
        self._paid_ratio = slot_ms / (slot_ms - paid_ms) if slot_ms > paid_ms else math.inf

    def _look(
        self, prefilling: Iterable[Request], groups: DecodeGroups, latency: PipelineLatency
    ) -> None:
        """Work out what is left of all, as far as it may have changed."""
        if self._slowest is None or latency is not self._latency:
            self._latency, self._slowest = latency, PipelineLatency(latency.rhythm())
            self._rows, self._rests = NO_ROWS, {}
        rows = RowsBeside.of(
            groups.works(),
            depth=min(self._window, latency.num_stages + 1),
            shorten_chunks=self._shorten_chunks,
        )
        if not rows.is_like(self._rows, self._slowest):
            self._rows, self._rests = rows, {}
        known, rests = self._rests, {}
        for request in prefilling:
            rest = known.get(request)
            if (
                rest is None
                or rest.num_changes != rest.prefill.num_changes
                or rest.prefill is not request.last_prefill
            ):
                rest = _Rest.of(request, self._slowest, self._rows)
            rests[request] = rest
        self._rests, self._is_fresh = rests, True
        self._share_what_is_paid(self._slowest)
