"""Whose turn it is in the prefill of one microbatch after the other. Pure; one a budget.

Owner of what is remembered between microbatches: how much was sent of all prompts, by which those
that wait grow older, and the long prompt that was left no room and goes first next time. All
figures are in the unit of the budget, tokens or ms.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduler.part import Part
from scheduler.prefill import Prefill
from scheduler.prefill_order import Candidate, prefill_order
from scheduler.request import Request


class PrefillTurns:
    """Orders those who have chunks to send."""

    def __init__(self) -> None:
        """Begin with nothing sent and nobody owed."""
        self._clock = 0.0
        """All that was sent so far."""
        self._first_long: Request | None = None
        """The long one that the last order had first."""
        self._owed: Request | None = None

    def begin(self, prefill: Prefill) -> None:
        """Let a prefill begin to wait."""
        prefill.began_at = self._clock

    def order(self, candidates: Sequence[Candidate], budget: float) -> Sequence[Request]:
        """Return the outputs in the order of their turns, for a microbatch that holds budget."""
        order = prefill_order(candidates, budget=budget, clock=self._clock, owed=self._owed)
        self._first_long = order.first_long
        return order.requests

    def sent(self, parts: Sequence[Part], amount: float) -> None:
        """Count the chunks that were taken in the last order, and what they are together."""
        self._clock += amount
        is_served = any(part.request is self._first_long for part in parts)
        self._owed = None if is_served else self._first_long

    def leave(self, request: Request) -> None:
        """Owe it nothing."""
        if self._owed is request:
            self._owed = None
