"""Lets an engine that uses one route at a time have the oldest of several; the others wait.

Events of other routes are dropped, since nothing was sent there.
"""

from __future__ import annotations

from collections.abc import Callable

from scheduler import events


class OneRoute:
    """Owns which route is in use. Pure, but for the callback."""

    def __init__(self, on_event: Callable[[events.Event], None]) -> None:
        """Use none yet."""
        self.epoch = 0
        """Of the route in use; 0 without one."""
        self._on_event = on_event
        self._others: dict[int, events.RouteFormed] = {}
        """Routes that stand beside it, by epoch, the oldest first."""

    def hear(self, event: events.Event | events.RouteAwaited) -> None:
        """Hand an event on if it concerns the route in use, or no route."""
        match event:
            case events.RouteFormed():
                self._others[event.epoch] = event
                self._use_next()
            case events.RouteLost():
                self._lost(event)
            case events.Acked() | events.Loaded() | events.Stored():
                if event.epoch == self.epoch:
                    self._on_event(event)
            case events.RouteAwaited():
                pass
            case _:
                self._on_event(event)

    def _lost(self, event: events.RouteLost) -> None:
        """Go on with another route."""
        if self._others.pop(event.epoch, None) is not None:
            return
        self.epoch = 0
        self._on_event(event)
        self._use_next()

    def _use_next(self) -> None:
        """Use the oldest route that stands, unless one is in use."""
        if self.epoch or not self._others:
            return
        self.epoch = min(self._others)
        self._on_event(self._others.pop(self.epoch))
