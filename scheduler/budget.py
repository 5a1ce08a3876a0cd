"""How much prefill a microbatch holds: the interface, and the budget in tokens. Pure; one a route.

Decode rows do not count against tokens: chunks keep the borders that their strategy chose, and a
long prompt is not slowed down by those who decode. A budget in time is slot_budget.py.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Protocol

from scheduler.chunking import ChunkStrategy
from scheduler.latency_model import PipelineLatency, Work
from scheduler.part import Part, take_chunk
from scheduler.prefill import Prefill
from scheduler.prefill_order import Candidate
from scheduler.prefill_turns import PrefillTurns
from scheduler.request import Request


class Budget(Protocol):
    """Chooses the chunks of one microbatch after the other."""

    @property
    def align_tokens(self) -> int:
        """What chunks alone in a microbatch end at multiples of; 0 if a strategy cuts in tokens."""
        ...

    def begin(self, prefill: Prefill) -> None:
        """Take note of a prefill that begins."""
        ...

    def fill(
        self, prefilling: Sequence[Request], *, beside: Work, most: int, is_awaited: bool
    ) -> list[Part]:
        """Take the chunks of the next microbatch and count them as sent.

        Args:
            prefilling: all outputs with chunks to send, at least one.
            beside: what the microbatch holds already.
            most: chunks to take at most, >= 1.
            is_awaited: whether anybody decodes, in this microbatch or not.
        """
        ...

    def leave(self, request: Request) -> None:
        """Take note that an output ends or waits again, perhaps with chunks that were not sent."""
        ...

    def replace(self, latency: PipelineLatency, /) -> None:
        """Take note that the stages turned out to take something else."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Next:
    """The next chunk of an output."""

    candidate: Candidate
    end: int
    num_tokens: int
    """>= 1."""


class TokenBudget:
    """So many prefill tokens; chunks are cut by a strategy, and taken whole or not at all."""

    def __init__(self, strategy: ChunkStrategy, max_tokens: int) -> None:
        """Hold max_tokens >= 1."""
        self._strategy = strategy
        self._max_tokens = max_tokens
        self._turns = PrefillTurns()
        """In tokens."""
        self._nexts: dict[Request, _Next] = {}
        """Next chunks of those that have waited before."""

    @property
    def align_tokens(self) -> int:
        """Nothing: borders are where the strategy puts them."""
        return 0

    def begin(self, prefill: Prefill) -> None:
        """Cut it."""
        prefill.want((prefill.start, *self._strategy.cut(prefill.start, prefill.end)))
        self._turns.begin(prefill)

    def fill(
        self,
        prefilling: Sequence[Request],
        *,
        beside: Work,  # noqa: ARG002 - rows are no tokens of prefill
        most: int,
        is_awaited: bool,  # noqa: ARG002 - nor does a number of tokens depend on who waits
    ) -> list[Part]:
        """Take chunks as long as they fit; the first is taken whatever its size.

        A strategy's long chunk could wait for ever otherwise.
        """
        nexts = self._nexts
        candidates = [
            (nexts.get(request) or self._look_at(request)).candidate for request in prefilling
        ]
        parts: list[Part] = []
        left = self._max_tokens
        for request in self._turns.order(candidates, self._max_tokens):
            if len(parts) == most or left <= 0:
                break
            chunk = nexts[request]
            if chunk.num_tokens <= left or not parts:
                parts.append(take_chunk(request, chunk.end))
                left -= chunk.num_tokens
                del nexts[request]
        self._turns.sent(parts, self._max_tokens - left)
        return parts

    def leave(self, request: Request) -> None:
        """Owe it nothing."""
        self._turns.leave(request)
        self._nexts.pop(request, None)

    def replace(self, _latency: PipelineLatency, /) -> None:
        """Borders stay where the strategy puts them, as its users know it."""

    def _look_at(self, request: Request) -> _Next:
        """Find the next chunk of an output; count in tokens."""
        prefill = request.prefill
        end = prefill.wanted_end() or prefill.end
        num_tokens = end - prefill.next_start
        candidate = Candidate(
            request=request,
            rest=num_tokens if end == prefill.end else math.inf,
            total=prefill.end - prefill.start,
            began_at=prefill.began_at,
        )
        chunk = self._nexts[request] = _Next(candidate=candidate, end=end, num_tokens=num_tokens)
        return chunk
