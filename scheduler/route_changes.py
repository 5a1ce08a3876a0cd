"""What becomes of outputs when routes come and go. Pure.

What loses its route is resumed as what gave its pages to others: it waits with prompt and output
so far, and finds what is left of its pages wherever it goes on. One that may be the cause of the
losses and gets nowhere is given up.
"""

from __future__ import annotations

import dataclasses

from chunkmesh.errors import ChunkMeshError, StageUnavailable
from scheduler.actions import Action
from scheduler.dispatch import Dispatch
from scheduler.events import RouteAwaited, RouteFormed, RouteLost
from scheduler.live_outputs import LiveOutputs
from scheduler.parked import ROUTE_RETRY_S
from scheduler.prefixes import release_lease
from scheduler.recoveries import Recoveries
from scheduler.request import Request
from scheduler.standing_routes import StandingRoutes

MAX_IN_VAIN = 3
"""So often an output is resumed without any news of it in between."""
RouteEvent = RouteFormed | RouteLost | RouteAwaited


@dataclasses.dataclass(slots=True)
class Resumption:
    """What is to be done about those who have lost their route."""

    actions: list[Action] = dataclasses.field(default_factory=list)
    failed: dict[str, ChunkMeshError] = dataclasses.field(default_factory=dict)
    """Requests that cannot go on, and why."""


class RouteChanges:
    """Lets outputs wait for other routes."""

    def __init__(
        self,
        routes: StandingRoutes,
        dispatch: Dispatch,
        live: LiveOutputs,
        recoveries: Recoveries,
    ) -> None:
        """Change what these own together."""
        self._routes, self._dispatch = routes, dispatch
        self._live, self._recoveries = live, recoveries

    def take(self, event: RouteEvent, now_s: float) -> Resumption:
        """Take what becomes of a route.

        Raises:
            InvariantViolated: it could only come from a bug; nothing has changed.
        """
        match event:
            case RouteFormed():
                return self._formed(event, now_s)
            case RouteLost():
                return self._lost(event, now_s)
            case RouteAwaited():
                if not len(self._routes):
                    self._dispatch.parked.awaited(event, now_s)
                return Resumption()

    def _formed(self, event: RouteFormed, now_s: float) -> Resumption:
        """Let those who had no route run on this one."""
        is_same_model = self._routes.is_same_model(event)
        self._routes.form(event)
        parked = self._dispatch.stands()
        if is_same_model:
            return self._resume(parked, "", now_s)
        error = StageUnavailable("the model's weights have changed", retry_after_s=ROUTE_RETRY_S)
        return Resumption(failed={request.request_id: error for request in parked})

    def _lost(self, event: RouteLost, now_s: float) -> Resumption:
        """Let the outputs of a route wait for another; no stage of it is left to be told."""
        route = self._routes.lose(event.epoch)
        if route is None:
            return Resumption()
        self._dispatch.lost(event.reason, now_s)
        outputs = self._live.bound_to(event.epoch)
        cause = "fenced" if route.microbatches.deadlines.is_over else event.cause
        ran = [request for request in outputs if request.row is not None]
        self._recoveries.lost(ran, cause, now_s)
        released: list[Action] = []
        for request in outputs:
            released += release_lease(request)
            request.park(is_at_fault=cause != "left")
        resumption = self._resume(outputs, event.reason, now_s)
        resumption.actions[:0] = released
        return resumption

    def _resume(self, outputs: list[Request], reason: str, now_s: float) -> Resumption:
        """Let outputs wait for another route, as far as there is a point in that."""
        resumption = Resumption()
        for request in outputs:
            error = self._dispatch.unfit(request.spec)
            if request.setbacks.num_in_vain > MAX_IN_VAIN:
                error = StageUnavailable(
                    f"given up after {MAX_IN_VAIN} recoveries in a row that brought it no further:"
                    f" {reason}",
                    retry_after_s=ROUTE_RETRY_S,
                )
            if error is not None:
                resumption.failed.setdefault(request.request_id, error)
            elif request.request_id not in resumption.failed:
                resumption.actions += self._dispatch.wait(request, now_s)
        return resumption
