"""The engine on a fake clock: what a route would do, without one. Pure.

Stages and the links between them are clocks that work first in, first out: a microbatch begins on
a stage when the stage is free and its activation has arrived. The engine is the one that drives the
live pipeline, so a simulated plan is the plan that would run.

Source: discrete-event simulation, https://en.wikipedia.org/wiki/Discrete-event_simulation
"""

from __future__ import annotations

import dataclasses
import heapq
import itertools
from collections.abc import Sequence
from typing import Protocol

from chunkmesh.errors import ChunkMeshError
from scheduler.actions import Action, Failed, MatchPrefix, Output, SendMicrobatch
from scheduler.engine import Engine
from scheduler.events import (
    Acked,
    Arrived,
    Event,
    Matched,
    RequestSpec,
    RouteFormed,
    RouteLost,
)

OUTPUT_ID = 0
"""Every simulated output token."""


class StageTimes(Protocol):
    """How long things take, in seconds."""

    def compute_s(self, stage: int, microbatch: SendMicrobatch) -> float:
        """Return how long a stage computes a microbatch."""
        ...

    def send_s(self, stage: int, microbatch: SendMicrobatch) -> float:
        """Return how long its activation keeps the link to the next stage busy."""
        ...


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StageSpan:
    """One stage's work on one microbatch."""

    ready_s: float
    """When the stage was free for it."""
    start_s: float
    """>= ready_s."""
    end_s: float
    """>= start_s."""
    sent_s: float
    """When its activation was at the next stage; end_s on the last one."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedMicrobatch:
    """A microbatch and when each stage worked on it."""

    microbatch: SendMicrobatch
    spans: tuple[StageSpan, ...]
    """By stage."""


@dataclasses.dataclass(slots=True, kw_only=True)
class SimulatedRequest:
    """What became of one request; times since the simulation began."""

    spec: RequestSpec
    arrived_s: float
    token_times_s: list[float] = dataclasses.field(default_factory=list)
    """When each output token was known."""
    error: ChunkMeshError | None = None

    @property
    def ttft_s(self) -> float:
        """Time from arrival to the first token."""
        return self.token_times_s[0] - self.arrived_s


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """All that happened, until nothing was left to do."""

    requests: tuple[SimulatedRequest, ...]
    """In the order in which they were given."""
    microbatches: tuple[SimulatedMicrobatch, ...]
    """In the order of sending."""

    @property
    def num_stages(self) -> int:
        """Stages of the route."""
        return len(self.microbatches[0].spans) if self.microbatches else 0

    @property
    def begin_s(self) -> float:
        """When the first stage began to compute."""
        return self.microbatches[0].spans[0].start_s if self.microbatches else 0.0

    @property
    def end_s(self) -> float:
        """When the last stage was done."""
        return self.microbatches[-1].spans[-1].end_s if self.microbatches else 0.0

    def busy_ratio(self, stage: int) -> float:
        """Return the share of the time from begin to end that a stage computes."""
        busy_s = sum(
            each.spans[stage].end_s - each.spans[stage].start_s for each in self.microbatches
        )
        span_s = self.end_s - self.begin_s
        return busy_s / span_s if span_s > 0 else 0.0

    @property
    def bubble_ratio(self) -> float:
        """Share of all stages' time in which they do not compute."""
        stages = range(self.num_stages)
        return 1 - sum(map(self.busy_ratio, stages)) / len(stages) if stages else 0.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Arrival:
    """A request that will come."""

    at_s: float
    """>= 0."""
    spec: RequestSpec


class Simulator:
    """Runs an engine against stages that only take time."""

    def __init__(
        self,
        engine: Engine,
        route: RouteFormed,
        times: StageTimes,
        *,
        link_latency_s: float = 0.0,
    ) -> None:
        """Form the route at time 0; the engine must be fresh, and store nothing.

        Activations arrive link_latency_s after their link has sent them.
        """
        self._engine = engine
        self._times = times
        self._link_latency_s = link_latency_s
        self._epoch = 0
        """Of the route that was formed last."""
        self._free_s: list[float] = []
        """When each stage is done with all that it was sent."""
        self._link_free_s: list[float] = []
        """When each stage's link to the next has sent all that it was given."""
        self._events: list[tuple[float, int, Event]] = []
        """A heap: what the engine will hear, and when; equal times in the order of their making."""
        self._order = itertools.count()
        self._requests: dict[str, SimulatedRequest] = {}
        self._microbatches: list[SimulatedMicrobatch] = []
        self._first_epoch = route.epoch
        self._push(0.0, route)

    def replace_at(self, at_s: float, route: RouteFormed) -> None:
        """Lose the route at a time, as if a worker had died, and form another at once."""
        self._push(at_s, RouteLost(epoch=self._first_epoch, reason="a worker died"))
        self._push(at_s, route)

    def run(self, arrivals: Sequence[Arrival]) -> Simulation:
        """Let requests arrive and work until nothing is left to do."""
        for arrival in arrivals:
            request = SimulatedRequest(spec=arrival.spec, arrived_s=arrival.at_s)
            self._requests[arrival.spec.request_id] = request
            self._push(arrival.at_s, Arrived(spec=arrival.spec))
        while self._events:
            now_s, _, event = heapq.heappop(self._events)
            if isinstance(event, RouteFormed):
                self._epoch = event.epoch
                self._free_s = [now_s] * event.num_stages
                self._link_free_s = [now_s] * event.num_stages
            for action in self._engine.handle(event, now_s):
                self._perform(action, now_s)
        return Simulation(
            requests=tuple(self._requests[arrival.spec.request_id] for arrival in arrivals),
            microbatches=tuple(self._microbatches),
        )

    def _push(self, at_s: float, event: Event) -> None:
        heapq.heappush(self._events, (at_s, next(self._order), event))

    def _perform(self, action: Action, now_s: float) -> None:
        """Do one action of the engine; what only touches caches does nothing here."""
        match action:
            case SendMicrobatch():
                self._send(action, now_s)
            case MatchPrefix():
                self._push(now_s, Matched(request_id=action.request_id, num_pages=0, lease_id=None))
            case Output():
                times_s = self._requests[action.request_id].token_times_s
                times_s.extend(now_s for _ in action.token_ids)
            case Failed():
                self._requests[action.request_id].error = action.error
            case _:
                pass

    def _send(self, microbatch: SendMicrobatch, now_s: float) -> None:
        """Work out when every stage will be done with a microbatch, and let the engine hear it."""
        spans = []
        arrived_s = now_s
        for stage, free_s in enumerate(self._free_s):
            start_s = max(free_s, arrived_s)
            end_s = start_s + self._times.compute_s(stage, microbatch)
            is_last = stage == len(self._free_s) - 1
            arrived_s = end_s if is_last else self._cross(stage, microbatch, end_s)
            spans.append(StageSpan(ready_s=free_s, start_s=start_s, end_s=end_s, sent_s=arrived_s))
            self._free_s[stage] = end_s
            sampled_ids = (OUTPUT_ID,) * len(microbatch.samples) if is_last else ()
            acked = Acked(
                epoch=self._epoch,
                stage=stage,
                seq_no=microbatch.seq_no,
                compute_ms=1000 * (end_s - start_s),
                sampled_ids=sampled_ids,
            )
            self._push(end_s, acked)
        self._microbatches.append(SimulatedMicrobatch(microbatch=microbatch, spans=tuple(spans)))

    def _cross(self, stage: int, microbatch: SendMicrobatch, end_s: float) -> float:
        """Return when the next stage has an activation that a stage is done with at end_s."""
        sent_s = max(end_s, self._link_free_s[stage]) + self._times.send_s(stage, microbatch)
        self._link_free_s[stage] = sent_s
        return sent_s + self._link_latency_s
