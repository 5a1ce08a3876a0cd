"""Which route each output waits for. Pure.

An output that waits is bound to the route that is likely to give it its next token first
(first_token.py). It stays there, so that what is loaded for it is of use, unless another route has
become free: one with a place for it where nobody waits. There it goes if that serves it earlier;
being admitted there, it does not come back. Without a route it is parked (parked.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence

from chunkmesh.errors import ChunkMeshError, StageUnavailable
from scheduler.actions import Action
from scheduler.admission import too_large
from scheduler.engine_config import EngineConfig
from scheduler.events import RequestSpec
from scheduler.fair_door import FairDoor
from scheduler.fair_queue import place
from scheduler.first_token import Prospect, prospect
from scheduler.parked import ROUTE_RETRY_S, Parked
from scheduler.prefixes import release_lease
from scheduler.request import Request
from scheduler.route import Route
from scheduler.standing_routes import StandingRoutes

_LOOK_AHEAD = 8
"""So many that wait for a route are looked at for another."""


class Dispatch:
    """Owner of who waits for which route."""

    def __init__(self, config: EngineConfig, routes: StandingRoutes) -> None:
        """Begin with nobody waiting."""
        self.parked = Parked()
        self.door = FairDoor(config, self._waiting_of)
        self._config, self._routes = config, routes
        self.known_pages = 0
        """Of the largest route that stands or, without one, stood last."""
        self._is_freer = False
        """Whether somebody who waits might be better off elsewhere since that was looked at."""

    @property
    def num_waiting(self) -> int:
        """Outputs without a row."""
        return self.door.shares.all.num_waiting

    def refusal(self, spec: RequestSpec, now_s: float) -> ChunkMeshError | None:
        """Return why a new request must not wait, if so."""
        if not len(self._routes) and not self.parked.is_open(now_s):
            return self.parked.error()
        return self.door.refusal(spec, num_pages=self.known_pages)

    def unfit(self, spec: RequestSpec) -> StageUnavailable | None:
        """Return why a request that had a route cannot run on any that stands, if so."""
        num_pages = self._routes.most_pages
        if not num_pages or (error := too_large(spec, self._config, num_pages)) is None:
            return None
        text = f"no route that is left has room: {error}"
        return StageUnavailable(text, retry_after_s=ROUTE_RETRY_S)

    def wait(self, request: Request, now_s: float) -> list[Action]:
        """Let an output wait that is WAITING: for a route that has room for it, or for any."""
        self.door.waits(request)
        routes = list(self._routes)
        if not routes:
            request.epoch = None
            self.parked.add(request)
            return []
        if len(routes) > 1:
            routes = [each for each in routes if self._fits(request, each)]
        return self._bind(request, self._best(request, routes), now_s)

    def take_next(self, route: Route) -> Request | None:
        """Take out who is next on a route and has a place there, if there is one."""
        request = route.queue.take_next(route.has_place, self.door.shares.may_run)
        if request is not None:
            self._is_freer = True
            self.door.admitted(request)
        return request

    def remove(self, request: Request) -> None:
        """Forget an output that has ended, waiting or running."""
        self.door.gone(request)
        route = self._routes.find(request.epoch)
        if route is None:
            self.parked.remove(request)
        else:
            route.queue.remove(request)
            self._is_freer = True

    def stands(self) -> list[Request]:
        """Note that a route has come; return those for which none stood, to be bound."""
        self._is_freer = True
        self.known_pages = self._routes.most_pages
        return self.parked.stands()

    def lost(self, reason: str, now_s: float) -> None:
        """Note that a route has gone."""
        self._is_freer = True
        self.known_pages = self._routes.most_pages or self.known_pages
        if not len(self._routes):
            self.parked.lost(reason, now_s)

    def look_again(self) -> None:
        """Note that somebody who waits might be better off elsewhere."""
        self._is_freer = True

    def balance(self, now_s: float) -> list[Action] | None:
        """Let outputs move to routes that have become free; None if nobody does."""
        if not self._is_freer or len(self._routes) < 2:
            return None
        self._is_freer = False
        fetched = [self._fetch(free, now_s) for free in self._routes if not len(free.queue)]
        moves = [actions for actions in fetched if actions is not None]
        return list(itertools.chain.from_iterable(moves)) if moves else None

    def _waiting_of(self, user: str) -> Iterator[Request]:
        """Yield the outputs that a user has waiting, wherever they wait."""
        yield from (each for each in self.parked if each.spec.user == user)
        for route in self._routes:
            yield from route.queue.of(user)

    def _fetch(self, free: Route, now_s: float) -> list[Action] | None:
        """Let the first output move to a free route that is served earlier there, if any is."""
        others = [each for each in self._routes if each is not free]
        waiting = [request for route in others for request in route.queue.first(_LOOK_AHEAD)]
        for request in sorted(waiting, key=place):
            source = self._routes.find(request.epoch)
            if source is None or not self._fits(request, free) or not free.has_place(request):
                continue
            here, there = self._look(request, source), self._look(request, free)
            if there.time < here.time or (here.lacks_place and there.time <= here.time):
                source.queue.remove(request)
                actions = [*source.prefixes.cancel(request), *release_lease(request)]
                request.wait_elsewhere()
                return actions + self._bind(request, free, now_s)
        return None

    def _bind(self, request: Request, route: Route, now_s: float) -> list[Action]:
        """Let an output wait for a route, and ask for its prefix."""
        request.epoch = route.epoch
        if len(self._routes) > 1:
            request.expected_hit_tokens = route.prefixes.num_held_tokens(request)
        route.queue.add(request)
        return route.prefixes.ask(request, route.pace.latency, now_s)

    def _best(self, request: Request, routes: Sequence[Route]) -> Route:
        """Choose between routes, at least one."""
        if len(routes) == 1:
            return routes[0]
        return min(routes, key=lambda route: self._look(request, route))

    def _look(self, request: Request, route: Route) -> Prospect:
        return prospect(
            request,
            route,
            chunk_tokens=self._config.chunked_prefill_tokens,
            is_modelled=self._routes.are_modelled,
        )

    def _fits(self, request: Request, route: Route) -> bool:
        """Whether a route could hold an output to its end."""
        return too_large(request.spec, self._config, route.pages.num_pages) is None
