"""Which prompts go first into the next microbatch. Pure.

Higher priority goes first, whatever waits below. Among equals, short prompts ride ahead of long
ones: those whose rest fits into half a microbatch, up to half of it together, so that long ones
keep the other half. The long ones go by response ratio, (waited + total) / total, which is 1 for
who never waited and grows the faster the shorter a prompt is: nobody starves. Who was served last
keeps its turn until the ratio of another is twice its own; else prompts of one length would take
turns and all be done last. If riders left no room for the one whose turn it was, it goes before the
next riders.
Source: highest response ratio next, https://en.wikipedia.org/wiki/Highest_response_ratio_next
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from scheduler.request import Request

_RIDERS_SHARE = 0.5
_TURN_FACTOR = 2.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A prompt with chunks to send; all figures in the unit of the budget, tokens or ms."""

    request: Request
    rest: float
    """What is left to send, > 0."""
    total: float
    """With what was sent, >= rest."""
    waited: float
    """What others were given since its prefill began, >= 0."""

    @property
    def response_ratio(self) -> float:
        """>= 1."""
        return (self.waited + self.total) / self.total


@dataclasses.dataclass(frozen=True, slots=True)
class Turn:
    """Which of the long prompts goes on."""

    request: Request
    is_owed: bool
    """Whether riders left no room for it."""


@dataclasses.dataclass(frozen=True, slots=True)
class PrefillOrder:
    """Who goes first."""

    requests: Sequence[Request]
    """All of the candidates."""
    first_long: Request | None
    """The first of them that is no rider."""

    def next_turn(self, taken: Collection[Request]) -> Turn | None:
        """Return whose turn it is when these were taken; None if all candidates rode."""
        first = self.first_long
        return None if first is None else Turn(first, is_owed=first not in taken)


def prefill_order(
    candidates: Sequence[Candidate], *, budget: float, turn: Turn | None
) -> PrefillOrder:
    """Order candidates for a microbatch that holds budget, > 0, in their unit."""
    if len(candidates) == 1:
        only = candidates[0].request
        return PrefillOrder((only,), only)
    turned = turn.request if turn else None

    def rank(candidate: Candidate) -> tuple[float, tuple[int, int, int]]:
        factor = _TURN_FACTOR if candidate.request is turned else 1.0
        return -factor * candidate.response_ratio, candidate.request.rank

    ranked = sorted(candidates, key=rank)
    riders = _riders(ranked, _RIDERS_SHARE * budget)
    owed = turned if turn and turn.is_owed else None

    def place(candidate: Candidate) -> tuple[int, int]:
        request = candidate.request
        group = 0 if request is owed else 1 if request in riders else 2
        return -request.spec.priority, group

    requests = [candidate.request for candidate in sorted(ranked, key=place)]
    first_long = next((r for r in requests if r is owed or r not in riders), None)
    return PrefillOrder(requests, first_long)


def _riders(ranked: Sequence[Candidate], room: float) -> set[Request]:
    """Return the short ones that fit into room together, those of higher priority first."""
    riders: set[Request] = set()
    for candidate in sorted(ranked, key=lambda each: -each.request.spec.priority):
        if candidate.rest <= room:
            riders.add(candidate.request)
            room -= candidate.rest
    return riders
