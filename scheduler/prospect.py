"""How long requests may wait while no route stands. Pure; the registry asks after every event."""

from __future__ import annotations

import dataclasses

from scheduler.decisions import RouteAwaited

REFORM_S = 5.0
"""Longest that requests wait for workers that are attached to become a route. One that works takes
a fraction of it; without a limit a link that never stands would keep requests for ever."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long requests wait when no attached worker can take over."""

    takeover_s: float
    """For anybody, after an unforeseen loss."""
    announced_s: float
    """For the successor of a worker that has said it leaves."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Outlook:
    until_s: float
    reason: str
    is_announced: bool


class Prospect:
    """Owns what was last said of the wait for a route."""

    def __init__(self, patience: Patience) -> None:
        """Begin without a wait: before the first route nobody has requests."""
        self._patience = patience
        self._until_s: float | None = None
        """When to give up if nobody can take over; None while there is no wait."""
        self._announced_until_s: float | None = None
        self._covered_s: float | None = None
        """Since when attached workers could be a route; None while they could not."""
        self._said: _Outlook | None = None

    def lost(self, now_s: float, *, is_announced: bool) -> None:
        """Hear that the last standing route is gone."""
        patience = self._patience
        self._until_s = now_s + (patience.announced_s if is_announced else patience.takeover_s)
        self._announced_until_s = self._until_s if is_announced else None
        self._covered_s = self._said = None

    def announced(self, now_s: float) -> None:
        """Hear that a worker leaves which the next route would have needed, if one is awaited."""
        if self._until_s is not None:
            self._announced_until_s = now_s + self._patience.announced_s
            self._until_s = max(self._until_s, self._announced_until_s)

    def found(self) -> None:
        """Hear that a route stands."""
        self._until_s = self._announced_until_s = self._covered_s = self._said = None

    def look(self, now_s: float, *, is_covered: bool, reason: str) -> RouteAwaited | None:
        """Return how long to wait from now, if there is a wait and this is news.

        is_covered says whether workers that are attached can be a route, or form one.
        """
        if self._until_s is None:
            return None
        if not is_covered:
            self._covered_s = None
        elif self._covered_s is None:
            self._covered_s = now_s
        until_s = self._until_s
        if self._covered_s is not None:
            until_s = max(until_s, self._covered_s + REFORM_S)
        announced_s = self._announced_until_s
        outlook = _Outlook(
            until_s=until_s,
            reason=reason,
            is_announced=announced_s is not None and now_s < announced_s,
        )
        if outlook == self._said:
            return None
        self._said = outlook
        return RouteAwaited(
            wait_s=max(0.0, until_s - now_s), reason=reason, is_announced=outlook.is_announced
        )
