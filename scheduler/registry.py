"""Which workers there are, and which of them form routes. Pure: the shell sends what it returns.

A route is one worker for every layer range of an exact tiling of the model. Identical ranges are
replicas: as soon as workers that are in no route tile the model they form one more, and what is
left over are spares. A range that partly overlaps an attached one is refused. Routes that stand are
left alone, even where other workers would make a better one. Forming: Join to all, JoinReady from
all, Connect to all, Joined from all, RouteStands.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum

from chunkmesh.layers import LayerRange, check_tiling
from scheduler.decisions import (
    Decision,
    RouteBroke,
    RouteStands,
    SendReleased,
    SendStandBy,
)
from scheduler.doubts import Doubts, Pair, pairs_of
from scheduler.formation import Formation, OutboundLink, Phase
from scheduler.pool_names import PoolNames
from scheduler.prospect import Patience, Prospect
from scheduler.route_choice import RouteChoice, tiling
from scheduler.worker_check import check_worker
from scheduler.worker_hello import WorkerHello

FORMING_S = 15.0
"""Time for a route to form; pools of many pages may be made for it."""


class FaultSide(Enum):
    """Which part of a stage a fault is of."""

    STAGE = "stage"
    INBOUND = "inbound link"
    OUTBOUND = "outbound link"


class Registry:
    """Owns the attached workers and their routes."""

    def __init__(
        self,
        *,
        model_layers: int,
        page_tokens: int,
        new_token: Callable[[], bytes],
        patience: Patience,
        term: int = 1,
    ) -> None:
        """Start empty; epochs are those of the scheduler's term, 0 < term < 2**31."""
        self.workers: dict[str, WorkerHello] = {}
        """Attached workers by id, in the order they came."""
        self.leaving: set[str] = set()
        """Attached workers that will be part of no route any more."""
        self.routes: dict[int, Formation] = {}
        """Those that stand or form, by epoch, in the order they were begun."""
        self.epoch = term << 32
        """Of the newest route; only ever grows, over all routes."""
        self.page_tokens = page_tokens
        self._model_layers = model_layers
        self._new_token = new_token
        self._pools = PoolNames()
        self._last_epochs: dict[str, int] = {}
        """Of attached workers that have been a stage: when last."""
        self._doubts = Doubts()
        self._failure = ""
        """Why the last route broke or did not form."""
        self._prospect = Prospect(patience)
        self._standing_by: dict[str, str] = {}
        """Attached workers that know they are in no route: what they were told."""

    def lead(self, term: int) -> None:
        """Begin every epoch from now on with this term or a later one."""
        self.epoch = max(self.epoch, term << 32)

    def attach(self, hello: WorkerHello, now_s: float) -> list[Decision]:
        """Take in a worker.

        Raises:
            Refused: it does not fit this mesh; nothing has changed.
        """
        self.check(hello)
        self.workers[hello.worker_id] = hello
        self._doubts.lift_holds()
        return self._go_on([], now_s)

    def check(self, hello: WorkerHello) -> None:
        """Look whether a worker fits the model and the workers already here.

        Raises:
            Refused: it does not.
        """
        check_worker(
            hello,
            self.workers.values(),
            model_layers=self._model_layers,
            page_tokens=self.page_tokens,
        )

    def lose(
        self, worker_id: str, reason: str, now_s: float, *, is_late: bool = False
    ) -> list[Decision]:
        """Forget a worker whose stream has ended or fallen silent, or that did not do its work.

        A late one may have waited for the link from the stage before it, which is doubted too.
        """
        if self.workers.pop(worker_id, None) is None:
            return []
        route = self.route_of(worker_id)
        if is_late and route is not None:
            self._doubts.add(_blamed(route, worker_id, FaultSide.INBOUND), now_s)
        self.leaving.discard(worker_id)
        self._pools.forget(worker_id)
        self._last_epochs.pop(worker_id, None)
        self._standing_by.pop(worker_id, None)
        self._doubts.lift_holds()
        return self._go_on(self._dissolve(route, reason, now_s), now_s)

    def leave(self, worker_id: str, now_s: float) -> list[Decision]:
        """Let go of a living worker that has said it will end; its route is given up at once."""
        if worker_id not in self.workers or worker_id in self.leaving:
            return []
        was_covered = self._is_covered()
        self.leaving.add(worker_id)
        self._doubts.lift_holds()
        reason = f"the worker of layers {self.workers[worker_id].layers} is leaving"
        route = self.route_of(worker_id)
        decisions = self._dissolve(route, reason, now_s, is_announced=True)
        if was_covered and not self._is_covered():
            self._prospect.announced(now_s)
        return [*self._go_on(decisions, now_s), SendReleased(worker_id=worker_id)]

    def fault(
        self,
        worker_id: str,
        epoch: int,
        reason: str,
        now_s: float,
        *,
        side: FaultSide = FaultSide.STAGE,
    ) -> list[Decision]:
        """A living worker cannot go on in this epoch; who is doubted depends on the side."""
        route = self.routes.get(epoch)
        if route is None or worker_id not in route.worker_ids:
            return []
        self._doubts.add(_blamed(route, worker_id, side), now_s)
        return self._go_on(self._dissolve(route, reason, now_s), now_s)

    def join_ready(self, worker_id: str, epoch: int) -> list[Decision]:
        """A worker answered Join."""
        route = self.routes.get(epoch)
        return [] if route is None else list(route.join_ready(worker_id))

    def joined(
        self, worker_id: str, epoch: int, link: OutboundLink | None, now_s: float
    ) -> list[Decision]:
        """A worker answered Connect; link is None on the last stage."""
        route = self.routes.get(epoch)
        if route is None or not route.joined(worker_id, link, now_s):
            return []
        self._prospect.found()
        stands = RouteStands(
            epoch=epoch,
            worker_ids=route.worker_ids,
            pool_ids=self._pools.of(route.worker_ids),
            num_pages=route.num_pages,
            num_host_pages=route.num_host_pages,
            fingerprint=route.fingerprint(),
            link_latency_ms=route.link_latency_ms,
        )
        return self._go_on([stands], now_s)

    def tick(self, now_s: float) -> list[Decision]:
        """Give up what forms for too long, try again what is due."""
        decisions: list[Decision] = []
        for route in list(self.routes.values()):
            if route.stood_s is None and now_s >= route.deadline_s:
                for worker_id in sorted(route.unanswered):
                    self._doubts.add((worker_id, worker_id), now_s)
                decisions += self._dissolve(route, "its stages did not connect in time", now_s)
            elif route.proves_itself(now_s):
                self._doubts.forgive(pairs_of(route.worker_ids))
        return self._go_on(decisions, now_s)

    def route_of(self, worker_id: str) -> Formation | None:
        """Return the route, forming or standing, that a worker is a stage of."""
        return next(
            (route for route in self.routes.values() if worker_id in route.worker_ids), None
        )

    def standing(self) -> list[Formation]:
        """Return the routes that stand, the longest standing first."""
        return [route for route in self.routes.values() if route.phase is Phase.STANDING]

    def missing(self) -> tuple[LayerRange, ...]:
        """Layers that no attached worker holds, those left out that are leaving."""
        ranges = {
            each.layers for each in self.workers.values() if each.worker_id not in self.leaving
        }
        return check_tiling(ranges, self._model_layers).missing

    def reason(self) -> str:
        """Why no route stands, in words; empty if one does."""
        if self.standing():
            return ""
        missing = self.missing()
        if missing:
            return "no worker holds layers " + ", ".join(map(str, missing))
        if self.routes:
            return "the route is forming"
        return f"the route forms again soon: {self._failure}"

    def fingerprint(self) -> bytes:
        """SHA-256 over the digests of the weights and config; empty without a route."""
        first = next(iter(self.routes.values()), None)
        return b"" if first is None else first.fingerprint()

    def _free(self) -> list[WorkerHello]:
        """Return workers that a new route may have, in the order they came."""
        taken = {each for route in self.routes.values() for each in route.worker_ids}
        return [
            hello
            for worker_id, hello in self.workers.items()
            if worker_id not in taken and worker_id not in self.leaving
        ]

    def _go_on(self, decisions: list[Decision], now_s: float) -> list[Decision]:
        """Form what can be formed now, then tell who waits."""
        while (route := self._next_route(now_s)) is not None:
            self._pools.join(route)
            decisions += route.joins(self._new_token)
        reason = self.reason()
        awaited = self._prospect.look(now_s, is_covered=self._is_covered(), reason=reason)
        if awaited is not None:
            decisions.append(awaited)
        return [*decisions, *self._stand_bys(reason)]

    def _is_covered(self) -> bool:
        """Whether attached workers are a route, form one, or could."""
        return bool(self.routes) or tiling(self._free(), self._model_layers) is not None

    def _next_route(self, now_s: float) -> Formation | None:
        """Begin a new epoch if workers that are free tile the model."""
        stages = tiling(self._free(), self._model_layers)
        choice = RouteChoice(doubts=self._doubts, last_epochs=self._last_epochs, now_s=now_s)
        chosen = None if stages is None else choice.best(stages)
        if chosen is None:
            return None
        self.epoch += 1
        route = self.routes[self.epoch] = Formation(
            self.epoch,
            [self.workers[each] for each in chosen],
            page_tokens=self.page_tokens,
            deadline_s=now_s + FORMING_S,
        )
        for worker_id in chosen:
            self._last_epochs[worker_id] = self.epoch
            self._standing_by.pop(worker_id, None)
        return route

    def _dissolve(
        self, route: Formation | None, reason: str, now_s: float, *, is_announced: bool = False
    ) -> list[Decision]:
        """Drop a route, if there is one; its workers are free."""
        if route is None:
            return []
        del self.routes[route.epoch]
        self._failure = reason
        if route.phase is not Phase.STANDING:
            return []
        if not self.standing():
            self._prospect.lost(now_s, is_announced=is_announced)
        return [RouteBroke(epoch=route.epoch, reason=reason)]

    def _stand_bys(self, reason: str) -> list[Decision]:
        """Tell those who are in no route what has changed for them."""
        news = [
            hello.worker_id
            for hello in self._free()
            if self._standing_by.get(hello.worker_id) != reason
        ]
        self._standing_by.update(dict.fromkeys(news, reason))
        return [SendStandBy(worker_id=each, reason=reason) for each in news]


def _blamed(route: Formation, worker_id: str, side: FaultSide) -> Pair:
    """Return the link or the worker that a fault speaks against."""
    stage = route.worker_ids.index(worker_id)
    if side is FaultSide.INBOUND and stage > 0:
        return route.worker_ids[stage - 1], worker_id
    if side is FaultSide.OUTBOUND and stage + 1 < len(route.worker_ids):
        return worker_id, route.worker_ids[stage + 1]
    return worker_id, worker_id
