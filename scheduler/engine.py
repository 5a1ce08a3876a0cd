"""The one place that decides about requests: events in, actions out. Pure.

The shell gives every event with its monotonic clock and does the actions in the order given. When
handle returns, everything that can be sent has been sent, so the engine never needs a turn of its
own but for load deadlines.

What is too late is harmless and changes nothing: messages of an older epoch, a second answer to
the same question, answers for a request, load or store that has ended. What only a bug can say
(an epoch, seq_no, load or store never sent, a gap, a wrong number of sampled ids) raises
InvariantViolated before anything has changed.

Source: the events-in, actions-out core of etcd's raft (https://github.com/etcd-io/raft).
"""

from __future__ import annotations

from chunkmesh.errors import ChunkMeshError, InvariantViolated, StageUnavailable
from scheduler.actions import (
    Action,
    Failed,
    MatchPrefix,
    Output,
    ReleaseLease,
)
from scheduler.admission import Admission
from scheduler.chunking import ChunkStrategy, FixedChunks
from scheduler.engine_config import EngineConfig
from scheduler.events import (
    Acked,
    Arrived,
    Cancelled,
    Event,
    Loaded,
    Matched,
    RequestSpec,
    RouteFormed,
    RouteLost,
    Stored,
    Tick,
)
from scheduler.output import Ending, chunk_done, finished, push_token
from scheduler.request import Part, Request, RequestState
from scheduler.route import Route, release_lease
from scheduler.snapshot import Snapshot

ROUTE_RETRY_S = 2.0


class Engine:
    """Owner of all requests and of the route that they run on."""

    def __init__(self, config: EngineConfig, chunks: ChunkStrategy | None = None) -> None:
        """Begin without a route; chunks of chunked_prefill_tokens unless a strategy is given."""
        self._config = config
        self._chunks = chunks or FixedChunks(config.chunked_prefill_tokens)
        self._epoch = 0
        """Of the last route formed; the current one's if a route stands."""
        self._route: Route | None = None
        self._requests: dict[str, Request] = {}
        """By id, all that have not FINISHED: empty without a route."""
        self._queue = Admission(config)

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take one event; now_s is the scheduler's monotonic clock and never goes back.

        Raises:
            InvariantViolated: the event could only come from a bug; nothing has changed.
        """
        match event:
            case RouteFormed():
                actions = self._route_formed(event)
            case RouteLost(reason=reason):
                actions = self._route_lost(reason)
            case Arrived(spec=spec):
                actions = self._arrived(spec)
            case Matched():
                actions = self._matched(event)
            case Loaded():
                actions = self._loaded(event, now_s)
            case Acked():
                actions = self._acked(event, now_s)
            case Stored():
                actions = self._stored(event)
            case Cancelled():
                actions = self._cancelled(event)
            case Tick():
                actions = []
        return actions + self._go_on(now_s)

    def is_live(self, request_id: str) -> bool:
        """Whether a request waits or runs: its id must not arrive again before it has ended."""
        return request_id in self._requests

    def is_idle(self) -> bool:
        """Whether nothing is waiting, running or in flight and every page is free."""
        return not self._requests and (self._route is None or self._route.is_at_rest())

    def snapshot(self) -> Snapshot:
        """Count what there is."""
        route = self._route
        return Snapshot(
            epoch=self._epoch,
            num_pages=route.pages.num_pages if route else 0,
            num_free_pages=route.pages.num_free if route else 0,
            num_running=len(route.running) if route else 0,
            num_waiting=len(self._queue),
            num_in_flight=route.pipeline.num_in_flight if route else 0,
            num_loads=len(route.loads) if route else 0,
            num_stores=len(route.stores) if route else 0,
        )

    def _go_on(self, now_s: float) -> list[Action]:
        """Do everything that is possible by now: deadlines, admissions, microbatches."""
        route = self._route
        if route is None:
            return []
        actions: list[Action] = []
        for end in route.loads.expire(now_s):
            actions += route.end_load(end, now_s=now_s)
        while (request := self._queue.head()) is not None and route.has_place(request):
            self._queue.remove(request)
            actions += route.admit(request, now_s=now_s)
        while (microbatch := route.next_microbatch()) is not None:
            actions.append(microbatch)
        return actions

    def _route_formed(self, event: RouteFormed) -> list[Action]:
        """Start clean on a new route; whatever was left on an old one fails."""
        if event.epoch <= self._epoch:
            raise InvariantViolated(f"epoch {event.epoch} formed after {self._epoch}")
        actions = self._route_lost("the route was formed anew")
        self._epoch = event.epoch
        self._route = Route(event, self._config, self._chunks)
        return actions

    def _route_lost(self, reason: str) -> list[Action]:
        """Fail every request and forget the route; no stage is left to be told."""
        actions: list[Action] = []
        self._route = None
        for request in list(self._requests.values()):
            actions += self._fail(request, reason)
        return actions

    def _arrived(self, spec: RequestSpec) -> list[Action]:
        """Let a request wait, and ask for its prefix: never for its last token."""
        if self.is_live(spec.request_id):
            raise InvariantViolated(f"{spec.request_id} arrived while it is live")
        error: ChunkMeshError | None
        if self._route is None:
            error = StageUnavailable("no route stands", retry_after_s=ROUTE_RETRY_S)
        else:
            error = self._queue.refusal(spec, num_pages=self._route.pages.num_pages)
        if error is not None:
            return [Failed(request_id=spec.request_id, error=error)]
        request = Request(spec=spec)
        self._requests[spec.request_id] = request
        self._queue.add(request)
        digests = spec.digests[: (len(spec.prompt_ids) - 1) // self._config.page_tokens]
        if not digests:
            request.move(RequestState.QUEUED)
            return []
        return [MatchPrefix(request_id=spec.request_id, digests=digests)]

    def _matched(self, event: Matched) -> list[Action]:
        """Note how much HiCache has; whoever ended meanwhile only gives the lease back."""
        request = self._requests.get(event.request_id)
        if request is None or request.state is not RequestState.WAITING:
            lease_id = event.lease_id
            return [] if lease_id is None else [ReleaseLease(lease_id=lease_id)]
        most = (request.prompt_tokens - 1) // self._config.page_tokens
        request.num_match_pages = max(0, min(event.num_pages, most))
        request.lease_id = event.lease_id
        request.move(RequestState.QUEUED)
        return [] if request.num_match_pages else release_lease(request)

    def _loaded(self, event: Loaded, now_s: float) -> list[Action]:
        """Take one stage's part of a hit."""
        route = self._route_of(event.epoch, event.stage)
        if route is None:
            return []
        end = route.loads.loaded(event.stage, event.load_id, event.num_pages)
        return [] if end is None else route.end_load(end, now_s=now_s)

    def _stored(self, event: Stored) -> list[Action]:
        """Take one stage's end of a store."""
        route = self._route_of(event.epoch, event.stage)
        if route is None:
            return []
        return [*route.stores.stored(event.stage, event.store_id, event.stored)]

    def _acked(self, event: Acked, now_s: float) -> list[Action]:
        """Take one stage's acknowledgement, and with the last stage's the results."""
        route = self._route_of(event.epoch, event.stage)
        if route is None:
            return []
        num_sampled = len(event.sampled_ids)
        parts = route.pipeline.ack(event.stage, event.seq_no, num_sampled=num_sampled)
        if parts is None:
            return []
        actions: list[Action] = []
        if event.stage == route.pipeline.last_stage:
            actions += self._results(route, parts, event.sampled_ids, now_s)
        for complete in route.pipeline.take_complete():
            actions += route.complete(complete)
        return actions

    def _results(
        self, route: Route, parts: tuple[Part, ...], sampled_ids: tuple[int, ...], now_s: float
    ) -> list[Action]:
        """Tell what a microbatch has brought; nothing for those who have ended meanwhile."""
        route.groups.arrived([part.request for part in parts])
        actions: list[Action] = []
        ids = iter(sampled_ids)
        for part in parts:
            token_id = next(ids) if part.is_sampled else None
            if part.request.state is RequestState.FINISHED:
                continue
            if part.is_chunk:
                actions.append(chunk_done(part.request, now_s))
            if token_id is not None:
                actions += self._token(route, part.request, token_id)
        return actions

    def _token(self, route: Route, request: Request, token_id: int) -> list[Action]:
        """Give a live request its next token, and its end if that was the last."""
        text, ending = push_token(request, token_id)
        actions: list[Action] = [
            Output(request_id=request.request_id, child=0, token_ids=(token_id,), text=text)
        ]
        if ending is not None:
            return actions + self._finish(request, ending)
        if request.state is RequestState.PREFILL:
            request.move(RequestState.DECODE)
            route.groups.add(request)
        return actions

    def _cancelled(self, event: Cancelled) -> list[Action]:
        """End a request on its caller's wish; text held back is only for one who still listens."""
        request = self._requests.get(event.request_id)
        if request is None:
            return []
        text = request.spec.texts[0].flush() if event.cause == "abort" else ""
        actions: list[Action] = []
        if text:
            actions.append(Output(request_id=request.request_id, child=0, token_ids=(), text=text))
        return actions + self._finish(request, Ending(reason="abort"))

    def _finish(self, request: Request, ending: Ending) -> list[Action]:
        """End a request as it should."""
        return [finished(request, ending), *self._drop(request)]

    def _fail(self, request: Request, reason: str) -> list[Action]:
        """End a request whose route is gone."""
        error = StageUnavailable(reason, retry_after_s=ROUTE_RETRY_S)
        return [Failed(request_id=request.request_id, error=error), *self._drop(request)]

    def _drop(self, request: Request) -> list[Action]:
        """Forget a request, wherever it stands; what is in flight keeps its pages."""
        del self._requests[request.request_id]
        self._queue.remove(request)
        actions = release_lease(request)
        request.move(RequestState.FINISHED)
        if self._route is not None and request.row is not None:
            actions += self._route.leave(request)
        return actions

    def _route_of(self, epoch: int, stage: int) -> Route | None:
        """Return the route that a stage speaks of, or None if that is gone.

        Raises:
            InvariantViolated: the epoch was never formed or has no such stage.
        """
        if epoch > self._epoch:
            raise InvariantViolated(f"message of epoch {epoch}, the latest is {self._epoch}")
        route = self._route
        if route is None or epoch < route.epoch:
            return None
        if not 0 <= stage < route.num_stages:
            raise InvariantViolated(f"message of stage {stage}, the route has {route.num_stages}")
        return route
