"""Which decoding requests step together. Pure.

A decode step needs the token of the step before, so one request keeps one stage busy at a time.
Spread over as many groups as there are stages, all stages work at once; each group's next step
leaves when its results are in. Stages move at the pace of the slowest group, so groups are made to
take equally long: a row behind 100,000 tokens may cost more than ten behind 1000.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable

from scheduler.latency_model import PipelineLatency, Work
from scheduler.request import Request
from scheduler.row_times import RowTimes


@dataclasses.dataclass(slots=True)
class _Group:
    """Requests whose steps share a microbatch."""

    members: list[Request] = dataclasses.field(default_factory=list)
    """In the order of joining."""
    in_flight: set[Request] = dataclasses.field(default_factory=set)
    """Members whose result is awaited; the next step leaves when there is none."""
    last_step: int = 0
    """Number of its last step among the steps of all groups."""


@dataclasses.dataclass(slots=True)
class _Load:
    """What a group's next step would take."""

    group: _Group
    num_rows: int
    num_tokens: int
    time: float
    """Of these rows and tokens, in the unit of RowTimes."""


class DecodeGroups:
    """Keeps groups equally long as requests come and go, by a latency model if there is one.

    Without one a group is as long as it has members. With fewer requests than groups, some groups
    are empty. Nobody moves for less than the model can tell, and a member in flight never does, so
    groups may differ by more until its result arrives.
    """

    def __init__(
        self,
        num_groups: int,
        latency: PipelineLatency | None = None,
        *,
        max_members: int | None = None,
    ) -> None:
        """Begin with empty groups, num_groups >= 1.

        No group gets more than max_members; there are never more requests than all hold together.
        """
        self._groups = [_Group() for _ in range(num_groups)]
        self._num_steps = 0
        self._times = RowTimes.of(latency)
        self._max_members = max_members

    def works(self) -> list[Work]:
        """Return what the next step of each group asks of a stage, but for groups that are empty.

        What a group has in flight counts as if it was to come.
        """
        return [
            Work.of_rows([member.known_tokens for member in group.members])
            for group in self._groups
            if group.members
        ]

    def replace(self, latency: PipelineLatency) -> None:
        """Take note that rows turned out to take something else."""
        self._times = RowTimes.of(latency)
        self._balance()

    @property
    def has_members(self) -> bool:
        """Whether anybody decodes."""
        return any(group.members for group in self._groups)

    def add(self, request: Request) -> None:
        """Let a request with a first token join a shortest group, best one not in flight."""
        load = min(
            filter(self._has_room, map(self._load, self._groups)),
            key=lambda load: (load.time, load.num_rows, len(load.group.in_flight)),
        )
        load.group.members.append(request)

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
        """Move members that are not in flight until groups are alike or no move helps."""
        if len(self._groups) == 1:
            return
        loads = [self._load(group) for group in self._groups]
        while self._has_moved(loads):
            pass

    def _has_moved(self, loads: list[_Load]) -> bool:
        """Move members from each group while it helps, longest first; return whether any moved."""
        has_moved = False
        for source in sorted(loads, key=lambda load: -load.time):
            while (target := self._shortest(loads, source)) is not None:
                mover = self._best_mover(source, target)
                if mover is None:
                    break
                has_moved = True
                source.group.members.remove(mover)
                target.group.members.append(mover)
                for load, sign in ((source, -1), (target, 1)):
                    load.num_rows += sign
                    load.num_tokens += sign * mover.known_tokens
                    load.time = self._times.time(load.num_rows, load.num_tokens)
        return has_moved

    def _load(self, group: _Group) -> _Load:
        """Add up a group."""
        num_rows = len(group.members)
        num_tokens = sum([member.known_tokens for member in group.members])
        return _Load(group, num_rows, num_tokens, self._times.time(num_rows, num_tokens))

    def _has_room(self, load: _Load) -> bool:
        """Say whether one more may join."""
        return self._max_members is None or load.num_rows < self._max_members

    def _shortest(self, loads: Iterable[_Load], source: _Load) -> _Load | None:
        """Return the shortest group with room, if source is longer as far as can be told."""
        target = min(filter(self._has_room, loads), key=lambda load: load.time, default=None)
        if target is None or not self._times.is_longer(source.time, target.time):
            return None
        return target

    def _best_mover(self, source: _Load, target: _Load) -> Request | None:
        """Return the member whose move makes the longer of both shortest, the last if several.

        None if no move makes it shorter.
        """
        best, best_time = None, source.time
        for member in reversed(source.group.members):
            if member in source.group.in_flight:
                continue
            tokens = member.known_tokens
            left = self._times.time(source.num_rows - 1, source.num_tokens - tokens)
            grown = self._times.time(target.num_rows + 1, target.num_tokens + tokens)
            if max(left, grown) < best_time:
                best, best_time = member, max(left, grown)
        return best
