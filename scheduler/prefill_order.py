"""Which prompts go first into the next microbatch. Pure.

Higher priority goes first, whatever waits below. Among equals, short prompts ride ahead of long
ones: those whose rest fits into half a microbatch, up to half of it together, so that long ones
keep the other half. Short ones beyond that ride next time; now they get what long ones leave,
however long they have waited. All go by response ratio, (age + total) / total: it grows with all
that was sent since a prefill began, and the faster the shorter it is. So a shorter one passes a
longer one once it has waited long enough for its length, those of one length go in the order of
arrival, and nobody starves. A long one that riders left no room goes before the next riders.
Source: highest response ratio next, https://en.wikipedia.org/wiki/Highest_response_ratio_next
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from scheduler.request import Request

RIDERS_SHARE = 0.5


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A prompt with chunks to send; all figures in the unit of the budget, tokens or ms."""

    request: Request
    rest: float
    """What is left to send, > 0; inf if it cannot be sent at once."""
    total: float
    """With what was sent, > 0."""
    began_at: float
    """What had been sent of all prompts when its prefill began."""
    rank: tuple[int, int, int] = dataclasses.field(init=False)
    """Of the request."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "rank", self.request.rank)

    def turn(self, clock: float) -> tuple[int, float, tuple[int, int, int]]:
        """Return what sorts by priority, then response ratio, highest first, then rank."""
        return self.rank[0], (self.began_at - clock) / self.total, self.rank

    def is_short(self, room: float) -> bool:
        """Say whether it fits into room, and did from the start: a long one's tail is not short."""
        return max(self.rest, self.total) <= room


@dataclasses.dataclass(frozen=True, slots=True)
class PrefillOrder:
    """Who goes first."""

    requests: Sequence[Request]
    """All of the candidates."""
    first_long: Request | None
    """The first of them that is no rider."""


def prefill_order(
    candidates: Sequence[Candidate], *, budget: float, clock: float, owed: Request | None = None
) -> PrefillOrder:
    """Order candidates, at least one, for the next microbatch.

    Args:
        candidates: all that wait.
        budget: what the microbatch holds, > 0, in their unit.
        clock: what has been sent of all prompts by now.
        owed: who was left no room in the last one, if anybody was.
    """
    if len(candidates) == 1:
        only = candidates[0].request
        return PrefillOrder((only,), only)
    ranked = sorted(candidates, key=lambda candidate: candidate.turn(clock))
    room = RIDERS_SHARE * budget
    riders = _riders(ranked, room)
    riders.discard(owed)

    def place(candidate: Candidate) -> tuple[int, int]:
        request = candidate.request
        if request is owed:
            group = 0
        elif request in riders:
            group = 1
        else:
            group = 3 if candidate.is_short(room) else 2
        return candidate.rank[0], group

    if riders or owed is not None:
        ranked.sort(key=place)
    requests = [candidate.request for candidate in ranked]
    first_long = next((request for request in requests if request not in riders), None)
    return PrefillOrder(requests, first_long)


def _riders(ranked: Sequence[Candidate], room: float) -> set[Request | None]:
    """Return the short ones that fit into room together."""
    riders: set[Request | None] = set()
    for candidate in ranked:
        if candidate.rest <= room:
            riders.add(candidate.request)
            room -= candidate.rest
    return riders
