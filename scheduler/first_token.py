"""How soon an output would get its next token on a route, to choose between routes. Pure.

What it has to compute there depends on the pages that the route holds of it. Before that come those
of higher priority, and earlier ones that are no longer; others share the microbatches with it
(prefill_order.py). Where the latency of a route is not known, all are measured in tokens.
"""

from __future__ import annotations

import dataclasses

from scheduler.latency_model import PipelineLatency, Work
from scheduler.request import Request
from scheduler.route import Route


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class Prospect:
    """What an output would have of a route; the lowest is best."""

    lacks_place: bool
    """Whether it waits for pages or rows first: nobody knows how long."""
    time: float
    """Until its known tokens are computed, in ms or tokens."""
    num_outputs: int
    """That wait or run there."""
    epoch: int


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Cost:
    """What ranges of tokens take on one route."""

    latency: PipelineLatency | None
    chunk_tokens: int
    rows: Work
    """Of the longest group that decodes beside."""

    def of(self, start: int, end: int) -> float:
        """Return the time of [start, end), as if its chunks were alike; 0 if it is empty."""
        if start >= end:
            return 0.0
        num_chunks = -(-(end - start) // self.chunk_tokens)
        if self.latency is None:
            return float(end - start + num_chunks * self.rows.num_rows)
        mean = Work(
            prefix_tokens=(start + end) // 2,
            new_tokens=(end - start) // num_chunks,
            pairs=(end * end - start * start) // num_chunks,
        )
        return num_chunks * self.latency.microbatch_ms(mean + self.rows)


def prospect(request: Request, route: Route, *, chunk_tokens: int, is_modelled: bool) -> Prospect:
    """Look at a route for an output; is_modelled says that all routes have a latency."""
    cost = _Cost(
        latency=route.pace.latency if is_modelled else None,
        chunk_tokens=chunk_tokens,
        rows=max(
            route.microbatches.groups.works(), key=lambda work: work.row_tokens, default=Work()
        ),
    )
    start, end = route.prefixes.num_held_tokens(request), request.known_tokens
    own = time = cost.of(start, end)
    outputs = route.outputs()
    for other in outputs:
        left_start, left_end = other.left_tokens
        if other is request or left_start >= left_end:
            continue
        is_earlier, is_longer = other.rank < request.rank, left_end - left_start > end - start
        if other.spec.priority != request.spec.priority:
            time += cost.of(left_start, left_end) if is_earlier else 0.0
        elif is_earlier and not is_longer:
            time += cost.of(left_start, left_end)
        elif is_earlier or left_end - left_start < end - start:
            time += min(cost.of(left_start, left_end), own)
    lacks_place = not route.has_place(request)
    return Prospect(lacks_place, time, len(outputs), route.epoch)
