"""The one place that decides about requests: events in, actions out. Pure.

The shell gives every event with its monotonic clock and does the actions in the order given. When
handle returns, everything that can be sent has been sent, so the engine never needs a turn of its
own but for deadlines.

A route that is lost takes nothing with it but what its workers computed: its outputs are resumed
from what was told, on another route or the same one formed anew, as if they had been preempted.
One that may be the cause, and gets nowhere, is not resumed for ever.

What is too late is harmless and changes nothing: messages of a route that is gone, a second answer
to the same question, answers for a request, load or store that has ended. What only a bug can say
(an epoch, seq_no, load or store never sent, a gap, a wrong number of results) raises
InvariantViolated before anything has changed.

Source: the events-in, actions-out core of etcd's raft (https://github.com/etcd-io/raft).
"""

from __future__ import annotations

from chunkmesh.errors import ChunkMeshError, InvariantViolated, ModelFault
from chunkmesh.logprobs import TokenLogprobs
from scheduler.actions import Action, Failed, FenceStage, Output
from scheduler.cache_answers import CacheAnswers
from scheduler.census import Census
from scheduler.chunking import ChunkStrategy
from scheduler.dispatch import Dispatch
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
    RouteAwaited,
    RouteFormed,
    RouteLost,
    Stored,
    Tick,
)
from scheduler.fork import copies
from scheduler.live_outputs import LiveOutputs
from scheduler.observations import Observations
from scheduler.output import aborted, chunk_done, finished, progress, push_token, tell_prompt
from scheduler.prefixes import release_lease
from scheduler.recoveries import Recoveries
from scheduler.request import Request, RequestState
from scheduler.results import PartResult, deal
from scheduler.route import Route
from scheduler.route_changes import RouteChanges, RouteEvent
from scheduler.snapshot import Snapshot, snapshot_of
from scheduler.standing_routes import StandingRoutes

NO_CHOICE = (
    "the model's logits are no numbers, or rule out every id that the request allows: "
    "weights are damaged, or activations are beyond the range of the element type"
)


class Engine:
    """Owner of all requests."""

    def __init__(self, config: EngineConfig, chunks: ChunkStrategy | None = None) -> None:
        """Begin without a route; cut by chunks if given, whatever config asks for."""
        self.recoveries = Recoveries()
        self._config = config
        self._routes = StandingRoutes(config, chunks)
        self._dispatch = Dispatch(config, self._routes)
        self._live = LiveOutputs()
        self._answers = CacheAnswers(self._routes, self._live)
        self._changes = RouteChanges(self._routes, self._dispatch, self._live, self.recoveries)
        self._num_arrived = 0
        self._num_preemptions = 0

    def handle(self, event: Event, now_s: float) -> list[Action]:
        """Take one event; now_s is the scheduler's monotonic clock and never goes back.

        Raises:
            InvariantViolated: the event could only come from a bug; nothing has changed.
        """
        match event:
            case Acked():
                actions = self._acked(event, now_s)
            case Arrived(spec=spec):
                actions = self._arrived(spec, now_s)
            case Matched() | Checked() | Loaded() | Stored():
                actions = self._answers.take(event, now_s)
            case Cancelled():
                actions = self._cancelled(event)
            case Tick():
                actions = self._tick(event, now_s)
            case RouteFormed() | RouteLost() | RouteAwaited():
                actions = self._route_changed(event, now_s)
        return actions + self._go_on(now_s)

    def is_live(self, request_id: str) -> bool:
        """Whether a request waits or runs: its id must not arrive again before it has ended."""
        return request_id in self._live

    def awaits_route(self, now_s: float) -> bool:
        """Whether no route stands, but new requests may wait for one."""
        return not len(self._routes) and self._dispatch.parked.is_open(now_s)

    def is_idle(self) -> bool:
        """Whether nothing is waiting, running or in flight and every page is free."""
        return not len(self._live) and all(route.is_at_rest() for route in self._routes)

    def forget_cached(self) -> int:
        """Forget what workers hold of prompts; return how many device pages that were.

        Who runs keeps his pages, but nobody will find them.
        """
        return self._routes.forget_cached()

    def flush(self, now_s: float) -> list[Action]:
        """Begin to write back what only the workers hold, before the scheduler ends."""
        for route in self._routes:
            route.stores.flush()
        return self._go_on(now_s)

    @property
    def observations(self) -> Observations:
        """What was seen since it was taken last."""
        return self._routes.observations

    def census(self) -> Census:
        """Count the requests that run, and those that wait."""
        return self._live.census()

    def snapshot(self) -> Snapshot:
        """Count what there is."""
        return snapshot_of(
            list(self._routes),
            Snapshot(
                epoch=self._routes.latest_epoch,
                num_waiting=self._dispatch.num_waiting,
                num_parked=len(self._dispatch.parked),
                num_route_pages=self._dispatch.known_pages,
                num_preemptions=self._num_preemptions,
                chunk_strategy=self._config.chunk_strategy,
                cache=self._routes.counts.copy(),
                recoveries=self.recoveries.counts.copy(),
            ),
        )

    def _go_on(self, now_s: float) -> list[Action]:
        """Do everything that is possible by now: preemptions, deadlines, admissions, sending."""
        if len(self._routes.standing) == 1:
            return self._serve(self._routes.standing[0], now_s)
        actions: list[Action] = []
        for request in self._dispatch.parked.overdue(now_s):
            if self.is_live(request.request_id):
                actions += self._fail(request.request_id, self._dispatch.parked.error())
        for route in self._routes:
            actions += self._serve(route, now_s)
        while (moved := self._dispatch.balance(now_s)) is not None:
            actions += moved
            for route in self._routes:
                actions += self._serve(route, now_s)
        return actions

    def _serve(self, route: Route, now_s: float) -> list[Action]:
        """Do everything that is possible by now on one route."""
        actions, preempted = route.share_pages()
        self._num_preemptions += len(preempted)
        for leaver in preempted:
            actions += self._dispatch.wait(leaver, now_s)
        for load in route.loads.expire(now_s):
            actions += route.end_load(load, now_s=now_s)
        while (request := self._dispatch.take_next(route)) is not None:
            actions += route.admit(request, now_s=now_s)
        while (microbatch := route.next_microbatch(now_s)) is not None:
            actions.append(microbatch)
        return actions + list(route.stores.go_on())

    def _route_changed(self, event: RouteEvent, now_s: float) -> list[Action]:
        """Let outputs go on elsewhere, or end those that cannot."""
        resumption = self._changes.take(event, now_s)
        actions = resumption.actions
        for request_id, error in resumption.failed.items():
            actions += self._fail(request_id, error)
        return actions

    def _tick(self, tick: Tick, now_s: float) -> list[Action]:
        """Give up stages that are beyond their deadline."""
        self._dispatch.look_again()
        fences: list[Action] = []
        for route in self._routes:
            route.microbatches.deadlines.stood_still(tick.deaf_s)
            if (late := route.microbatches.deadlines.overdue(now_s)) is not None:
                fences.append(FenceStage(epoch=route.epoch, stage=late.stage, reason=late.reason))
        return fences

    def _arrived(self, spec: RequestSpec, now_s: float) -> list[Action]:
        """Let a request wait."""
        if self.is_live(spec.request_id):
            raise InvariantViolated(f"{spec.request_id} arrived while it is live")
        if (error := self._dispatch.refusal(spec, now_s)) is not None:
            return [Failed(request_id=spec.request_id, error=error)]
        door = self._dispatch.door
        leaver = door.makes_room(spec)
        actions = [] if leaver is None else self._fail(*leaver)
        request = Request(
            spec=spec, arrival=self._num_arrived, arrived_s=now_s, turn=door.take_turn(spec)
        )
        self._num_arrived += 1
        self._live.add(request)
        return actions + self._dispatch.wait(request, now_s)

    def _acked(self, event: Acked, now_s: float) -> list[Action]:
        """Take one stage's acknowledgement, and with the last stage's the results."""
        route = self._routes.of(event)
        if route is None or (parts := route.ack(event, now_s)) is None:
            return []
        actions: list[Action] = []
        if event.stage == route.microbatches.pipeline.last_stage:
            if self.recoveries.is_open:
                self.recoveries.computed(parts, now_s)
            route.microbatches.groups.arrived([part.request for part in parts])
            for result in deal(parts, event):
                actions += self._result(route, result, now_s)
        for complete in route.microbatches.pipeline.take_complete():
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
            actions.append(progress(request, route.microbatches.eta_s(request, now_s)))
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
        made = copies(first, others, self._config.page_tokens, epoch=route.epoch)
        return [*actions, *made]

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
        self._dispatch.remove(request)
        self.recoveries.ended(request)
        actions = release_lease(request)
        request.move(RequestState.FINISHED)
        if (route := self._routes.find(request.epoch)) is not None:
            actions += route.prefixes.cancel(request)
            if request.row is not None:
                actions += route.leave(request)
        return actions
