"""The attached workers: their streams, what they say, and the route that they form.

Everything runs on one asyncio loop; nothing here awaits a worker. What concerns requests is handed
to on_event as the engine's events, in the order heard.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from typing import assert_never

import structlog

from chunkmesh.pages import Namespace
from chunkmesh.v1 import stage_pb2 as pb
from scheduler import codec, events
from scheduler.fit_report import tell_fits
from scheduler.metrics import observe_prediction
from scheduler.page_keying import PageKeying
from scheduler.pipeline_time import LinkTime
from scheduler.registry import (
    Decision,
    Registry,
    RouteBroke,
    RouteStands,
    SendConnect,
    SendJoin,
    WorkerHello,
)
from scheduler.stage_fit import StageFit, pipeline_latency
from scheduler.timeline import Timeline
from scheduler.worker_stream import WorkerStream

_log = structlog.get_logger(__name__)
_MAX_TIMELINE = 4096
"""Microbatches that are kept of each request's timeline."""
LOOK_S = 0.1
"""Time between two looks at the clock."""
REFORM_S = 1.0
"""Pause before a route that failed is formed again."""


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
        self.fits: tuple[StageFit, ...] = ()
        """Of the stages of the route that stands or stood last."""
        self.registry = registry
        self.namespace: Namespace | None = None
        """Of the route that stands or stood last."""
        self.timeline = Timeline(num_stages=0, max_microbatches=0)
        """Of the epoch that stands or stood last."""
        self._on_event = on_event
        self._max_microbatch_tokens = max_microbatch_tokens
        self._keying = keying
        self._streams: dict[str, WorkerStream] = {}
        self._fits: dict[str, StageFit] = {}
        """Of attached workers."""
        self._looked_s = time.monotonic()
        """When look_at_clock was last called."""

    @property
    def route(self) -> list[WorkerHello]:
        """The workers of the standing route by stage; empty if none stands."""
        if self.registry.reason():
            return []
        return [self.registry.workers[each] for each in self.registry.route]

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
        stream = WorkerStream(worker_id=hello.worker_id, last_heard_s=now_s)
        self._streams[hello.worker_id] = stream
        self._fits[hello.worker_id] = fit
        _log.info("worker attached", worker=hello.worker_id, layers=str(hello.layers))
        self._decide(decisions)
        return stream

    def lose(self, worker_id: str, reason: str) -> None:
        """Give a worker up."""
        stream = self._streams.pop(worker_id, None)
        if stream is None:
            return
        self._fits.pop(worker_id)
        layers = self.registry.workers[worker_id].layers
        _log.warning("worker lost", worker=worker_id, layers=str(layers), reason=reason)
        stream.give_up(reason)
        text = f"the worker of layers {layers} was lost: {reason}"
        self._decide(self.registry.lose(worker_id, text, time.monotonic()))

    def lose_stream(self, stream: WorkerStream, reason: str) -> None:
        """Give a worker up whose stream ended, unless it has attached again by another one."""
        if self._streams.get(stream.worker_id) is stream:
            self.lose(stream.worker_id, reason)

    def close(self, reason: str = "the scheduler is shutting down") -> None:
        """Give all workers up; they will look for another scheduler."""
        for worker_id in list(self._streams):
            self.lose(worker_id, reason)

    def look_at_clock(self, timeout_s: float) -> None:
        """Give up workers that have been silent too long; form a route if one is due.

        Time in which this loop itself stood still is nobody's silence: what workers said meanwhile
        is still unread.
        """
        now_s = time.monotonic()
        deaf_s = max(0.0, now_s - self._looked_s - LOOK_S)
        self._looked_s = now_s
        for stream in list(self._streams.values()):
            stream.last_heard_s = min(now_s, stream.last_heard_s + deaf_s)
            silent_s = now_s - stream.last_heard_s
            if silent_s > timeout_s:
                self.lose(stream.worker_id, f"silent for {silent_s:.1f} s")
        self._decide(self.registry.tick(now_s))

    def send(self, orders: Sequence[pb.AttachResponse]) -> None:
        """Queue one order for each stage of the route."""
        for worker_id, order in zip(self.registry.route, orders, strict=True):
            self._send(worker_id, order)

    def broadcast(self, order: pb.AttachResponse) -> None:
        """Queue the same order for every stage of the route."""
        self.send([order] * len(self.registry.route))

    def hear(self, stream: WorkerStream, message: pb.AttachRequest) -> None:
        """Take one message of an attached worker."""
        stream.last_heard_s = time.monotonic()
        worker_id = stream.worker_id
        match message.WhichOneof("event"):
            case "ack":
                self._hear_ack(worker_id, message.ack)
            case "load_done" | "store_done":
                self._hear_cache(worker_id, message)
            case "join_ready":
                self._decide(self.registry.join_ready(worker_id, message.join_ready.epoch))
            case "joined":
                said = message.joined
                self._decide(
                    self.registry.joined(worker_id, said.epoch, said.transport, said.rtt_us)
                )
            case "fault":
                self._hear_fault(worker_id, message.fault)
            case _:
                pass

    def _stage_of(self, worker_id: str) -> int | None:
        """Return the worker's place in the standing route."""
        registry = self.registry
        stands = not registry.reason() and worker_id in registry.route
        return registry.route.index(worker_id) if stands else None

    def _hear_ack(self, worker_id: str, ack: pb.Ack) -> None:
        """Record when a stage worked, and let the engine go on.

        Raises:
            InvariantViolated: the worker broke the protocol.
        """
        stage = self._stage_of(worker_id)
        if stage is None or ack.epoch != self.registry.epoch:
            return
        acked = codec.acked_from(ack, stage)
        times = codec.times_from(ack)
        ratio = self.timeline.acked(stage, ack.seq_no, times, heard_s=time.monotonic())
        if ratio is not None:
            observe_prediction(stage, ratio)
        self._on_event(acked)

    def _hear_cache(self, worker_id: str, message: pb.AttachRequest) -> None:
        """Let the engine know what a stage has read or written."""
        stage = self._stage_of(worker_id)
        if stage is None:
            return
        epoch = self.registry.epoch
        if message.WhichOneof("event") == "load_done":
            self._on_event(codec.loaded_from(message.load_done, epoch, stage))
        else:
            self._on_event(codec.stored_from(message.store_done, epoch, stage))

    def _hear_fault(self, worker_id: str, fault: pb.Fault) -> None:
        """Dissolve the route of a worker that cannot go on."""
        layers = self.registry.workers[worker_id].layers
        _log.warning("stage fault", worker=worker_id, layers=str(layers), reason=fault.reason)
        text = f"the stage of layers {layers} failed: {fault.reason}"
        self._decide(self.registry.fault(worker_id, fault.epoch, text, time.monotonic()))

    def _decide(self, decisions: list[Decision]) -> None:
        """Do what the registry has decided."""
        for decision in decisions:
            match decision:
                case SendJoin():
                    self._join(decision)
                case SendConnect():
                    self._send(decision.worker_id, codec.connect_order(decision))
                case RouteStands():
                    self._stands(decision)
                case RouteBroke():
                    _log.warning("route lost", epoch=self.registry.epoch, reason=decision.reason)
                    self._on_event(events.RouteLost(reason=decision.reason))
                case _:
                    assert_never(decision)

    def _join(self, join: SendJoin) -> None:
        """Send a Join with what the whole route has in common."""
        self.namespace = Namespace(
            fingerprint=join.fingerprint,
            kv_dtype=self.registry.workers[join.worker_id].dtype,
            page_tokens=self.registry.page_tokens,
            rope=self._keying.rope,
            secret=self._keying.secret,
        )
        order = codec.join_order(
            join,
            page_tokens=self.registry.page_tokens,
            max_microbatch_tokens=self._max_microbatch_tokens,
        )
        self._send(join.worker_id, order)

    def _stands(self, route: RouteStands) -> None:
        """Tell the engine that it may send."""
        num_stages = len(route.worker_ids)
        _log.info("route stands", epoch=route.epoch, stages=num_stages, pages=route.num_pages)
        self.timeline = Timeline(num_stages=num_stages, max_microbatches=_MAX_TIMELINE)
        self.fits = tuple(self._fits[worker_id] for worker_id in route.worker_ids)
        tell_fits(self.fits)
        self._on_event(
            events.RouteFormed(
                epoch=route.epoch,
                num_stages=num_stages,
                num_pages=route.num_pages,
                latency=pipeline_latency(self.fits),
                page_bytes=tuple(
                    worker.kv_bytes_per_token * self.registry.page_tokens for worker in self.route
                ),
                num_host_pages=route.num_host_pages,
                pool_ids=route.pool_ids,
                chunk_alignment_tokens=max(each.chunk_alignment_tokens for each in self.route),
                link=LinkTime(latency_ms=self.registry.link_latency_ms()),
            )
        )

    def _send(self, worker_id: str, order: pb.AttachResponse) -> None:
        """Queue an order for a worker; give up one that does not take its orders."""
        stream = self._streams.get(worker_id)
        if stream is not None and not stream.send(order):
            reason = "it does not take its orders"
            asyncio.get_running_loop().call_soon(self.lose_stream, stream, reason)


def new_registry(*, model_layers: int, page_tokens: int) -> Registry:
    """Make a registry with random pairing tokens."""
    return Registry(
        model_layers=model_layers,
        page_tokens=page_tokens,
        new_token=lambda: secrets.token_bytes(16),
        retry_s=REFORM_S,
    )
