"""Outputs for which no route stands, and how long they may wait for one. Pure.

How long that is depends on the prospect, which the shell tells: a route that forms, a worker that
has said it will be back, or nothing. As long as nothing was told, it is as long as clients are told
to wait before they try again.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

from chunkmesh.errors import StageUnavailable
from scheduler.events import RouteAwaited
from scheduler.request import Request

ROUTE_RETRY_S = 2.0
"""When clients may try again."""
NO_ROUTE = "no route stands"


class Parked:
    """Owner of who waits for any route."""

    def __init__(self) -> None:
        """Begin with nobody, before the first route."""
        self._requests: list[Request] = []
        """Ascending by rank."""
        self._until_s = 0.0
        self._reason = NO_ROUTE
        self._is_announced = False

    def __len__(self) -> int:
        return len(self._requests)

    def __iter__(self) -> Iterator[Request]:
        return iter(self._requests)

    def add(self, request: Request) -> None:
        """Let an output wait in its place."""
        bisect.insort(self._requests, request, key=lambda each: each.rank)

    def remove(self, request: Request) -> None:
        """Take an output out, if it is here."""
        if request in self._requests:
            self._requests.remove(request)

    def lost(self, reason: str, now_s: float) -> None:
        """Note that the last route was lost, and nothing is known of another."""
        self._until_s, self._reason = now_s + ROUTE_RETRY_S, reason
        self._is_announced = False

    def awaited(self, event: RouteAwaited, now_s: float) -> None:
        """Note the prospect."""
        self._until_s, self._reason = now_s + event.wait_s, event.reason
        self._is_announced = event.is_announced

    def stands(self) -> list[Request]:
        """Note that a route stands; return who has waited for it, by rank."""
        self._until_s, self._reason, self._is_announced = 0.0, NO_ROUTE, False
        requests, self._requests = self._requests, []
        return requests

    def error(self) -> StageUnavailable:
        """Return what those are told who do not wait longer."""
        return StageUnavailable(self._reason, retry_after_s=ROUTE_RETRY_S)

    def is_open(self, now_s: float) -> bool:
        """Whether new requests may wait for a route, too."""
        return self._is_announced and now_s < self._until_s

    def overdue(self, now_s: float) -> list[Request]:
        """Return those who have waited too long; they stay until they are removed."""
        return [*self._requests] if self._requests and now_s >= self._until_s else []
