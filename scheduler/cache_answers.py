"""What HiCache and the stages say about cached pages, handed to whom it concerns. Pure."""

from __future__ import annotations

from scheduler.actions import Action, ReleaseLease
from scheduler.events import Checked, Loaded, Matched, Stored
from scheduler.live_outputs import LiveOutputs
from scheduler.request import RequestState
from scheduler.standing_routes import StandingRoutes

CacheEvent = Matched | Checked | Loaded | Stored


class CacheAnswers:
    """Takes answers for all routes and outputs; what is too late changes nothing."""

    def __init__(self, routes: StandingRoutes, live: LiveOutputs) -> None:
        """Find outputs in live."""
        self._routes, self._live = routes, live

    def take(self, event: CacheEvent, now_s: float) -> list[Action]:
        """Take one answer.

        Raises:
            InvariantViolated: nothing like it was ever asked for.
        """
        match event:
            case Matched():
                return self._matched(event, now_s)
            case Checked():
                for route in self._routes:
                    route.checks.answered(event)
                return []
            case Loaded():
                return self._loaded(event, now_s)
            case Stored():
                return self._stored(event)

    def _matched(self, event: Matched, now_s: float) -> list[Action]:
        """Note how much HiCache has; whoever ended meanwhile only gives the lease back."""
        request = self._live.find(event.request_id, event.child)
        route = None if request is None else self._routes.find(request.epoch)
        if route is None or request is None or request.state is not RequestState.WAITING:
            return [] if event.lease_id is None else [ReleaseLease(lease_id=event.lease_id)]
        return route.prefixes.matched(request, event, route.pace.latency, now_s)

    def _loaded(self, event: Loaded, now_s: float) -> list[Action]:
        """Take one stage's part of a hit."""
        route = self._routes.of(event)
        load = None if route is None else route.prefixes.loaded(event, now_s)
        return [] if route is None or load is None else route.end_load(load, now_s=now_s)

    def _stored(self, event: Stored) -> list[Action]:
        """Take one stage's end of a store."""
        route = self._routes.of(event)
        ended = event.stage, event.store_id, event.stored
        return [] if route is None else [*route.stores.stored(*ended)]
