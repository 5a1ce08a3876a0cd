"""Which decoding requests step together. Pure.

A decode step needs the token of the step before, so one request keeps one stage busy at a time.
Spread over as many groups as there are stages, all stages work at once; each group's next step
leaves when its results are in.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection

from scheduler.request import Request


@dataclasses.dataclass(slots=True)
class _Group:
    """Requests whose steps share a microbatch."""

    members: list[Request] = dataclasses.field(default_factory=list)
    """In the order of joining."""
    in_flight: set[Request] = dataclasses.field(default_factory=set)
    """Members whose result is awaited; the next step leaves when there is none."""
    last_step: int = 0
    """Number of its last step among the steps of all groups."""


class DecodeGroups:
    """Keeps group sizes within 1 of each other as requests come and go.

    With fewer requests than groups, some groups are empty. A member in flight is never moved, so
    sizes may differ by more until its result arrives.
    """

    def __init__(self, num_groups: int) -> None:
        """Begin with empty groups, num_groups >= 1."""
        self._groups = [_Group() for _ in range(num_groups)]
        self._num_steps = 0

    @property
    def has_members(self) -> bool:
        """Whether anybody decodes."""
        return any(group.members for group in self._groups)

    def add(self, request: Request) -> None:
        """Let a request with a first token join a smallest group, best one not in flight."""
        group = min(self._groups, key=lambda group: (len(group.members), len(group.in_flight)))
        group.members.append(request)

    def remove(self, request: Request) -> None:
        """Take a request out, if it is in; its awaited result no longer holds its group back."""
        for group in self._groups:
            if request in group.members:
                group.members.remove(request)
                group.in_flight.discard(request)
                self._balance()
                return

    def arrived(self, requests: list[Request]) -> None:
        """Note the results of requests."""
        for group in self._groups:
            group.in_flight.difference_update(requests)
        self._balance()

    def take_ready(self, stalled: Collection[Request] = ()) -> tuple[Request, ...]:
        """Send off the ready group that has waited longest; empty if none is ready.

        Those of its members that are stalled stay behind; with no others it is not ready.
        """
        ready = [
            group
            for group in self._groups
            if group.members
            and not group.in_flight
            and not (stalled and all(member in stalled for member in group.members))
        ]
        if not ready:
            return ()
        group = min(ready, key=lambda group: group.last_step)
        self._num_steps += 1
        group.last_step = self._num_steps
        stepping = tuple(member for member in group.members if member not in stalled)
        group.in_flight.update(stepping)
        return stepping

    def _balance(self) -> None:
        """Move members that are not in flight until sizes differ by at most 1 or none can move."""
        for group in self._groups:
            for mover in [r for r in reversed(group.members) if r not in group.in_flight]:
                smallest = min(self._groups, key=lambda group: len(group.members))
                if len(group.members) - len(smallest.members) <= 1:
                    break
                group.members.remove(mover)
                smallest.members.append(mover)
