"""The outputs that wait, in the order in which they are served; some users may be held back. Pure.

Of the highest priority the lowest turn goes first, then the oldest. Each user has a queue of its
own, and users stand in the order of their first ones: taking somebody in or out takes O(log n)
comparisons, and a user who is held back is passed at once, however much waits behind.
"""

from __future__ import annotations

import bisect
import heapq
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TypeAlias

from scheduler.request import Request

Place: TypeAlias = tuple[int, int, int, int]


class FairQueue:
    """Knows its members by their user, priority, turn, arrival and child, which must not change."""

    def __init__(self) -> None:
        """Begin with nobody waiting."""
        self._waiting: dict[str, list[Request]] = {}
        """By user, none of them empty, each ascending by place."""
        self._heads: list[tuple[Place, str]] = []
        """Users and their first one's place, ascending."""
        self._num_waiting = 0

    def __len__(self) -> int:
        return self._num_waiting

    def of_users(self) -> Mapping[str, Sequence[Request]]:
        """Return who waits of each user, in order; a view."""
        return self._waiting

    def add(self, request: Request) -> None:
        """Take an output in."""
        waiting = self._waiting.setdefault(request.spec.user, [])
        self._take_head(request.spec.user)
        bisect.insort(waiting, request, key=place)
        self._num_waiting += 1
        self._show_head(request.spec.user)

    def remove(self, request: Request) -> bool:
        """Take an output out; return whether it waited."""
        user = request.spec.user
        waiting = self._waiting.get(user, [])
        index = bisect.bisect_left(waiting, place(request), key=place)
        if waiting[index : index + 1] != [request]:
            return False
        self._take_head(user)
        del waiting[index]
        self._num_waiting -= 1
        if waiting:
            self._show_head(user)
        else:
            del self._waiting[user]
        return True

    def in_order(
        self, may_go: Callable[[Request], bool] = lambda _request: True
    ) -> Iterator[Request]:
        """Yield who waits; of a user nobody from the first one on that may not go.

        Nobody may be taken in or out meanwhile.
        """
        num_seen = 0
        next_ones: list[tuple[Place, str, int]] = []
        """The next one of each user of whom some were yielded."""
        while next_ones or num_seen < len(self._heads):
            head = self._heads[num_seen] if num_seen < len(self._heads) else None
            if head is not None and (not next_ones or head[0] < next_ones[0][0]):
                user, index = head[1], 0
                num_seen += 1
            else:
                _, user, index = heapq.heappop(next_ones)
            waiting = self._waiting[user]
            if not may_go(waiting[index]):
                continue
            yield waiting[index]
            if index + 1 < len(waiting):
                heapq.heappush(next_ones, (place(waiting[index + 1]), user, index + 1))

    def _take_head(self, user: str) -> None:
        """Take a user's head out before its queue changes, if there is one."""
        if waiting := self._waiting.get(user):
            del self._heads[bisect.bisect_left(self._heads, (place(waiting[0]), user))]

    def _show_head(self, user: str) -> None:
        """Put a user's head where it belongs; at least one waits."""
        bisect.insort(self._heads, (place(self._waiting[user][0]), user))


def place(request: Request) -> Place:
    """Return where an output stands in the queue; the lowest is served first."""
    return -request.spec.priority, request.turn, request.arrival, request.child
