"""The attached workers: their streams, what they say, and the routes that they form.

Everything runs on one asyncio loop; nothing here awaits a worker. What concerns requests is handed
to on_event as the engine's events, in the order heard.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import assert_never

import structlog

from chunkmesh.pages import Namespace
from chunkmesh.v1 import stage_pb2 as pb
from scheduler import codec, events, route_codec, route_metrics
from scheduler.decisions import (
    Decision,
    RouteAwaited,
    RouteBroke,
    RouteStands,
    SendConnect,
    SendJoin,
    SendReleased,
    SendStandBy,
)
from scheduler.live_route import LiveRoute, LiveRoutes
from scheduler.page_keying import PageKeying
from scheduler.prospect import Patience
from scheduler.registry import Registry
from scheduler.route_metrics import WorkerLoss
from scheduler.stage_fit import StageFit
from scheduler.timeline import Timeline
from scheduler.worker_hello import WorkerHello
from scheduler.worker_stream import WorkerStream
from scheduler.worker_streams import WorkerStreams

_log = structlog.get_logger(__name__)
_TAKES_NOTHING = "it does not take its orders"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerLimits:
    """How long is waited for workers."""

    silence_s: float
    """Longest that one may say nothing."""
    patience: Patience


class Workers:
    """Owns the registry and every worker's stream."""

    def __init__(
        self,
        *,
        registry: Registry,
        on_event: Callable[[events.Event], None],
        max_microbatch_tokens: int,
        keying: PageKeying,
    ) -> None:
        """Start without workers."""
        self.registry = registry
        self._live = LiveRoutes()
        self.namespace: Namespace | None = None
        """Of the route that was begun last; all that stand have the same."""
        self._on_event = on_event
        self._max_microbatch_tokens = max_microbatch_tokens
        self._keying = keying
        self._streams = WorkerStreams()
        self._fits: dict[str, StageFit] = {}
        """Of attached workers."""

    @property
    def routes(self) -> Mapping[int, LiveRoute]:
        """Those that stand, by epoch, the longest standing first."""
        return self._live.by_epoch

    @property
    def timeline(self) -> Timeline:
        """Of all routes."""
        return self._live.timeline

    def route(self, epoch: int) -> list[WorkerHello]:
        """Return the workers of a route by stage; empty if it does not stand any more."""
        live = self.routes.get(epoch)
        return [] if live is None else list(live.workers)

    @property
    def has_secret(self) -> bool:
        """Whether a server secret goes into the keys of pages."""
        return bool(self._keying.secret)

    def namespace_digest(self, *, tenant: str, cache_salt: str) -> bytes | None:
        """Return the parent of the first pages of a tenant's salt; None before the first route."""
        if self.namespace is None:
            return None
        return self.namespace.digest(tenant=tenant, cache_salt=cache_salt)

    def attach(self, hello: WorkerHello, fit: StageFit) -> WorkerStream:
        """Take in a worker whose latency is known by fit.

        Raises:
            Refused: it does not fit this mesh.
        """
        now_s = time.monotonic()
        self.lose(hello.worker_id, "attached again")
        decisions = self.registry.attach(hello, now_s)
        stream = self._streams.open(hello.worker_id, now_s)
        self._fits[hello.worker_id] = fit
        _log.info("worker attached", worker=hello.worker_id, layers=str(hello.layers))
        self._decide(decisions)
        return stream

    def lose(self, worker_id: str, reason: str, cause: WorkerLoss = "ended") -> None:
        """Give a worker up."""
        stream = self._streams.pop(worker_id)
        if stream is None:
            return
        self._fits.pop(worker_id)
        layers = self.registry.workers[worker_id].layers
        if worker_id in self.registry.leaving:
            _log.info("worker left", worker=worker_id, layers=str(layers))
        else:
            _log.warning("worker lost", worker=worker_id, layers=str(layers), reason=reason)
            route_metrics.count_lost_worker(cause)
        stream.give_up(reason)
        text = f"the worker of layers {layers} was lost: {reason}"
        lost = self.registry.lose(worker_id, text, time.monotonic(), is_late=cause == "fenced")
        self._decide(lost, cause)

    def lose_stream(self, stream: WorkerStream, reason: str, cause: WorkerLoss = "ended") -> None:
        """Give a worker up whose stream ended, unless it has attached again by another one."""
        if self._streams.get(stream.worker_id) is stream:
            self.lose(stream.worker_id, reason, cause)

    def fence(self, epoch: int, stage: int, reason: str) -> None:
        """Give up, in a moment, a worker beyond a deadline; nothing if its route is gone.

        It may attach again, and is then as good as new. Not at once, because whoever asks is in the
        middle of what the engine has said.
        """
        live = self.routes.get(epoch)
        stream = None if live is None else self._streams.get(live.workers[stage].worker_id)
        if stream is not None:
            asyncio.get_running_loop().call_soon(self.lose_stream, stream, reason, "fenced")

    def show(self) -> dict[int, tuple[int, ...]]:
        """Bring metrics up to who is attached; return each stage's capacity in pages, by epoch."""
        return self._live.show(self.registry)

    def close(self, reason: str = "the scheduler is shutting down") -> None:
        """Give all workers up; they will look for another scheduler."""
        streams = self._streams.pop_all()
        self._fits.clear()
        for stream in streams:
            stream.give_up(reason)
            self._decide(self.registry.lose(stream.worker_id, reason, time.monotonic()))

    def look_at_clock(self, timeout_s: float) -> float:
        """Give up workers that have been silent too long; form routes that are due.

        Return for how long this loop itself stood still.
        """
        now_s = time.monotonic()
        for worker_id, silent_s in self._streams.silent(now_s, timeout_s):
            self.lose(worker_id, f"silent for {silent_s:.1f} s", "silent")
        self._decide(self.registry.tick(now_s))
        return self._streams.deaf_s

    def send(self, epoch: int, orders: Sequence[pb.AttachResponse | None]) -> None:
        """Queue one order for each stage of a route that has any; nothing if it is gone."""
        live = self.routes.get(epoch)
        if live is not None:
            for worker, order in zip(live.workers, orders, strict=True):
                if order is not None:
                    self._send(worker.worker_id, order)

    def hear(self, stream: WorkerStream, message: pb.AttachRequest) -> None:
        """Take one message; nothing of a stream that was given up, which may bring old ones."""
        worker_id = stream.worker_id
        if self._streams.get(worker_id) is not stream:
            return
        stream.last_heard_s = time.monotonic()
        match message.WhichOneof("event"):
            case "ack":
                self._hear_ack(worker_id, message.ack)
            case "load_done" | "store_done":
                self._hear_cache(worker_id, message)
            case "join_ready":
                self._decide(self.registry.join_ready(worker_id, message.join_ready.epoch))
            case "joined":
                said = message.joined
                link = route_codec.link_from(said)
                now_s = stream.last_heard_s
                self._decide(self.registry.joined(worker_id, said.epoch, link, now_s))
            case "fault":
                self._hear_fault(worker_id, message.fault)
            case "leaving":
                layers = str(self.registry.workers[worker_id].layers)
                _log.info("worker is leaving", worker=worker_id, layers=layers)
                self._decide(self.registry.leave(worker_id, stream.last_heard_s), "left")
            case _:  # a heartbeat, whose coming is all that it says
                pass

    def _hear_ack(self, worker_id: str, ack: pb.Ack) -> None:
        """Record when a stage worked, and let the engine go on.

        Raises:
            InvariantViolated: the worker broke the protocol.
        """
        live = self.routes.get(ack.epoch)
        stage = None if live is None else live.stage_of(worker_id)
        if stage is None:
            return
        acked = codec.acked_from(ack, stage)
        self._live.hear_ack(ack, stage, heard_s=time.monotonic())
        self._on_event(acked)

    def _hear_cache(self, worker_id: str, message: pb.AttachRequest) -> None:
        """Let the engine know what a stage has read or written.

        It speaks of the epoch that it is in: what it had to say of the one before came before its
        JoinReady.
        """
        for live in self.routes.values():
            stage = live.stage_of(worker_id)
            if stage is None:
                continue
            if message.WhichOneof("event") == "load_done":
                self._on_event(codec.loaded_from(message.load_done, live.epoch, stage))
            else:
                self._on_event(codec.stored_from(message.store_done, live.epoch, stage))
            return

    def _hear_fault(self, worker_id: str, fault: pb.Fault) -> None:
        """Dissolve the route of a worker that cannot go on."""
        layers = self.registry.workers[worker_id].layers
        _log.warning("stage fault", worker=worker_id, layers=str(layers), reason=fault.reason)
        text = f"the stage of layers {layers} failed: {fault.reason}"
        side = route_codec.side_from(fault)
        decisions = self.registry.fault(worker_id, fault.epoch, text, time.monotonic(), side=side)
        self._decide(decisions, "fault")

    def _decide(self, decisions: list[Decision], cause: events.LossCause = "ended") -> None:
        """Do what the registry has decided; cause is that of routes that broke."""
        for decision in decisions:
            match decision:
                case SendJoin():
                    self._join(decision)
                case SendConnect():
                    self._send(decision.worker_id, route_codec.connect_order(decision))
                case SendStandBy() | SendReleased():
                    self._send(decision.worker_id, route_codec.rest_order(decision))
                case RouteStands():
                    self._stands(decision)
                case RouteBroke():
                    self._broke(decision, cause)
                case RouteAwaited():
                    self._await(decision)
                case _:
                    assert_never(decision)

    def _join(self, join: SendJoin) -> None:
        """Send a Join with what the whole route has in common."""
        dtype, page_tokens = self.registry.workers[join.worker_id].dtype, self.registry.page_tokens
        self.namespace = self._keying.namespace(join.fingerprint, dtype, page_tokens)
        order = route_codec.join_order(
            join, page_tokens=page_tokens, max_microbatch_tokens=self._max_microbatch_tokens
        )
        self._send(join.worker_id, order)

    def _stands(self, stands: RouteStands) -> None:
        """Tell the engine that it may send."""
        live = LiveRoute(
            stands=stands,
            workers=tuple(self.registry.workers[each] for each in stands.worker_ids),
            fits=tuple(self._fits[each] for each in stands.worker_ids),
            since_s=time.monotonic(),
        )
        self._live.add(live)
        self._on_event(live.formed(self.registry.page_tokens))

    def _broke(self, broke: RouteBroke, cause: events.LossCause) -> None:
        """Tell the engine that nothing more comes of a route."""
        self._live.remove(broke.epoch, broke.reason)
        lost = events.RouteLost(epoch=broke.epoch, reason=broke.reason, cause=cause)
        self._on_event(lost)

    def _await(self, awaited: RouteAwaited) -> None:
        """Tell the engine how long requests may wait."""
        _log.info("route awaited", wait_s=round(awaited.wait_s, 3), reason=awaited.reason)
        self._on_event(events.RouteAwaited(**dataclasses.asdict(awaited)))

    def _send(self, worker_id: str, order: pb.AttachResponse) -> None:
        """Queue an order for a worker; give up one that does not take its orders."""
        stream = self._streams.get(worker_id)
        if stream is not None and not stream.send(order):
            asyncio.get_running_loop().call_soon(self.lose_stream, stream, _TAKES_NOTHING)


def new_registry(model_layers: int, page_tokens: int, patience: Patience) -> Registry:
    """Make a registry with random pairing tokens."""
    return Registry(
        model_layers=model_layers,
        page_tokens=page_tokens,
        new_token=lambda: secrets.token_bytes(16),
        patience=patience,
    )
