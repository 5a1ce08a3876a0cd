"""The one place that decides about requests: events in, actions out. Pure.

The shell gives every event with its monotonic clock and does the actions in the order given. When
handle returns, everything that can be sent has been sent, so the engine never needs a turn of its
own but for load deadlines.

What is too late is harmless and changes nothing: messages of an older epoch, a second answer to
the same question, answers for a request, load or store that has ended. What only a bug can say
(an epoch, seq_no, load or store never sent, a gap, a wrong number of results) raises
InvariantViolated before anything has changed.

Source: the events-in, actions-out core of etcd's raft (https://github.com/etcd-io/raft).
"""

from __future__ import annotations

from chunkmesh.errors import ChunkMeshError, InvariantViolated, ModelFault, StageUnavailable
from chunkmesh.logprobs import TokenLogprobs
from scheduler.actions import Action, Failed, Output, ReleaseLease
from scheduler.admission import Admission
from scheduler.cache_counts import CacheCounts
from scheduler.chunking import ChunkStrategy
from scheduler.engine_config import EngineConfig
from scheduler.events import (
    Acked,
    Arrived,
    Cancelled,
    Checked,
    Event,
    Loaded,
    Matched,
    RequestSpec,
    RouteFormed,
    RouteLost,
    Stored,
    Tick,
)
from scheduler.fork import copies
from scheduler.kept_pages import KeptPages
from scheduler.live_outputs import LiveOutputs
from scheduler.output import aborted, chunk_done, finished, progress, push_token, tell_prompt
from scheduler.prefixes import release_lease
from scheduler.request import Request, RequestState
from scheduler.results import PartResult, deal
from scheduler.route import Route, check_formed, route_of
from scheduler.snapshot import Snapshot, snapshot_of

ROUTE_RETRY_S = 2.0
NO_CHOICE = (
    "the model's logits are no numbers, or rule out every id that the request allows: "
    "weights are damaged, or activations are beyond the range of the element type"
)


class Engine:
    """Owner of all requests and of the route that they run on."""

    def __init__(self, config: EngineConfig, chunks: ChunkStrategy | None = None) -> None:
        """Begin without a route; cut by chunks if given, whatever config asks for."""
        self._config = config
        self._chunks = chunks
        self._epoch = 0
        """Of the last route formed; the current one's if a route stands."""
        self._route: Route | None = None
        self._kept = KeptPages()
        self._live = LiveOutputs()
        """Empty without a route."""
        self._queue = Admission(config)
        self._counts = CacheCounts()
        self._num_arrived = 0
        self._num_preemptions = 0

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
                actions = self._arrived(spec, now_s)
            case Matched() | Checked():
                actions = self._answered(event, now_s)
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
        return request_id in self._live

    def is_idle(self) -> bool:
        """Whether nothing is waiting, running or in flight and every page is free."""
        return not len(self._live) and (self._route is None or self._route.is_at_rest())

    def forget_cached(self) -> int:
        """Forget what workers hold of prompts; return how many device pages that were.

        Who runs keeps his pages, but nobody will find them.
        """
        self._kept.forget()
        return 0 if self._route is None else self._route.tiers.forget()

    def flush(self, now_s: float) -> list[Action]:
        """Begin to write back what only the workers hold, before the scheduler ends."""
        if self._route is not None:
            self._route.stores.flush()
        return self._go_on(now_s)

    def snapshot(self) -> Snapshot:
        """Count what there is."""
        return snapshot_of(
            self._route,
            Snapshot(
                epoch=self._epoch,
                num_waiting=len(self._queue),
                num_preemptions=self._num_preemptions,
                chunk_strategy=self._config.chunk_strategy,
                cache=self._counts.copy(),
            ),
        )

    def _go_on(self, now_s: float) -> list[Action]:
        """Do everything that is possible by now: preemptions, deadlines, admissions, sending."""
        if (route := self._route) is None:
            return []
        actions, preempted = route.share_pages()
        self._num_preemptions += len(preempted)
        for leaver in preempted:
            actions += self._wait(route, leaver, now_s)
        for load in route.loads.expire(now_s):
            actions += route.end_load(load, now_s=now_s)
        while (request := self._queue.take_next(route.has_place)) is not None:
            actions += route.admit(request, now_s=now_s)
        while (microbatch := route.next_microbatch(now_s)) is not None:
            actions.append(microbatch)
        return actions + list(route.stores.go_on())

    def _route_formed(self, event: RouteFormed) -> list[Action]:
        """Start clean on a new route; whatever was left on an old one fails."""
        check_formed(event, self._epoch)
        actions = self._route_lost("the route was formed anew")
        self._epoch = event.epoch
        tiers = self._kept.take(event.pool_ids)
        self._route = Route(event, self._config, self._chunks, tiers, self._counts)
        return actions

    def _route_lost(self, reason: str) -> list[Action]:
        """Fail every request and forget the route; no stage is left to be told."""
        actions: list[Action] = []
        if self._route is not None:
            self._route.stores.abandon()
            self._kept.keep(self._route.pool_ids, self._route.tiers)
            self._route = None
        error = StageUnavailable(reason, retry_after_s=ROUTE_RETRY_S)
        for request_id in self._live.request_ids():
            actions += self._fail(request_id, error)
        return actions

    def _arrived(self, spec: RequestSpec, now_s: float) -> list[Action]:
        """Let a request wait."""
        if self.is_live(spec.request_id):
            raise InvariantViolated(f"{spec.request_id} arrived while it is live")
        if (route := self._route) is None:
            missing = StageUnavailable("no route stands", retry_after_s=ROUTE_RETRY_S)
            return [Failed(request_id=spec.request_id, error=missing)]
        if (error := self._queue.refusal(spec, num_pages=route.pages.num_pages)) is not None:
            return [Failed(request_id=spec.request_id, error=error)]
        leaver = self._queue.makes_room(spec)
        actions = [] if leaver is None else self._fail(*leaver)
        request = Request(spec=spec, arrival=self._num_arrived, turn=self._queue.take_turn(spec))
        self._num_arrived += 1
        self._live.add(request)
        return actions + self._wait(route, request, now_s)

    def _wait(self, route: Route, request: Request, now_s: float) -> list[Action]:
        """Let an output wait, and ask for its prefix."""
        self._queue.add(request)
        return route.prefixes.ask(request, route.pace.latency, now_s)

    def _matched(self, event: Matched, now_s: float) -> list[Action]:
        """Note how much HiCache has; whoever ended meanwhile only gives the lease back."""
        request = self._live.find(event.request_id, event.child)
        route = self._route
        if route is None or request is None or request.state is not RequestState.WAITING:
            return [] if event.lease_id is None else [ReleaseLease(lease_id=event.lease_id)]
        return route.prefixes.matched(request, event, route.pace.latency, now_s)

    def _answered(self, event: Matched | Checked, now_s: float) -> list[Action]:
        """Take what HiCache says, to an output that waits or about what the workers hold."""
        if isinstance(event, Matched):
            return self._matched(event, now_s)
        if self._route is not None:
            self._route.checks.answered(event)
        return []

    def _loaded(self, event: Loaded, now_s: float) -> list[Action]:
        """Take one stage's part of a hit."""
        route = route_of(event, self._route, self._epoch)
        load = None if route is None else route.prefixes.loaded(event, now_s)
        return [] if route is None or load is None else route.end_load(load, now_s=now_s)

    def _stored(self, event: Stored) -> list[Action]:
        """Take one stage's end of a store."""
        route = route_of(event, self._route, self._epoch)
        ended = event.stage, event.store_id, event.stored
        return [] if route is None else [*route.stores.stored(*ended)]

    def _acked(self, event: Acked, now_s: float) -> list[Action]:
        """Take one stage's acknowledgement, and with the last stage's the results."""
        route = route_of(event, self._route, self._epoch)
        if route is None or (parts := route.ack(event, now_s)) is None:
            return []
        actions: list[Action] = []
        if event.stage == route.pipeline.last_stage:
            route.groups.arrived([part.request for part in parts])
            for result in deal(parts, event):
                actions += self._result(route, result, now_s)
        for complete in route.pipeline.take_complete():
            actions += route.complete(complete)
        return actions

    def _result(self, route: Route, result: PartResult, now_s: float) -> list[Action]:
        """Tell what a part has brought; nothing for an output that has ended meanwhile."""
        part, request = result.part, result.part.request
        if request.state is RequestState.FINISHED:
            return []
        if not result.is_whole:
            return route.distrust(request) + self._fail(request.request_id, ModelFault(NO_CHOICE))
        actions: list[Action] = []
        if part.is_chunk and chunk_done(request):
            actions.append(progress(request, route.eta_s(request, now_s)))
        if result.prompt_logprobs is not None:
            actions += tell_prompt(request, part.start + 1, result.prompt_logprobs)
        if part.num_samples > 1:
            return actions + self._first_tokens(route, request, result)
        if part.num_samples:
            actions += self._token(route, request, result.token_ids[0], result.sampled_logprobs)
        return actions

    def _first_tokens(self, route: Route, first: Request, result: PartResult) -> list[Action]:
        """Let several outputs of one prompt begin, each with its first token."""
        others = route.fork(first)
        self._live.add(*others)
        actions: list[Action] = []
        for index, output in enumerate([first, *others]):
            logprobs = result.sampled_logprobs[index : index + 1]
            actions += self._token(route, output, result.token_ids[index], logprobs)
        return [*actions, *copies(first, others, self._config.page_tokens)]

    def _token(
        self, route: Route, request: Request, token_id: int, logprobs: tuple[TokenLogprobs, ...]
    ) -> list[Action]:
        """Give a live output its next token, and its end if that was the last."""
        text, ending = push_token(request, token_id)
        output = Output(
            request_id=request.request_id,
            child=request.child,
            token_ids=(token_id,),
            text=text,
            logprobs=logprobs[0] if logprobs else None,
        )
        if ending is not None:
            return [output, finished(request, ending), *self._drop(request)]
        route.go_on(request)
        return [output]

    def _cancelled(self, event: Cancelled) -> list[Action]:
        """End a request on its caller's wish; text held back is only for one who still listens."""
        actions: list[Action] = []
        for request in self._live.of(event.request_id):
            actions += aborted(request, is_heard=event.cause == "abort") + self._drop(request)
        return actions

    def _fail(self, request_id: str, error: ChunkMeshError) -> list[Action]:
        """End all that lives of a request with an error."""
        actions: list[Action] = [Failed(request_id=request_id, error=error)]
        for request in self._live.of(request_id):
            actions += self._drop(request)
        return actions

    def _drop(self, request: Request) -> list[Action]:
        """Forget an output, wherever it stands; what is in flight keeps its pages."""
        self._live.remove(request)
        self._queue.remove(request)
        actions = release_lease(request)
        request.move(RequestState.FINISHED)
        if self._route is not None:
            actions += self._route.prefixes.cancel(request)
            if request.row is not None:
                actions += self._route.leave(request)
        return actions
