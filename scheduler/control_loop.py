"""The shell around the pure engine: hears workers and calls, does what the engine says.

Everything here runs on one asyncio loop and never awaits a peer: orders go into bounded queues,
calls to the cache into tasks.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import assert_never

import structlog

from chunkmesh.errors import ChunkMeshError, StageUnavailable
from chunkmesh.v1 import stage_pb2 as pb
from scheduler import actions, codec, events
from scheduler.cache_calls import CacheCalls
from scheduler.cache_report import CacheReport
from scheduler.chunk_report import ChunkReport
from scheduler.engine import Engine
from scheduler.engine_config import EngineConfig
from scheduler.hicache_client import HiCacheClient
from scheduler.metrics import RecoveryReport, count_preemptions, show_chunks
from scheduler.open_requests import OpenRequests
from scheduler.page_keying import PageKeying
from scheduler.parked import ROUTE_RETRY_S
from scheduler.pipeline_metrics import PipelineReport
from scheduler.request_metrics import show_census, take_observations
from scheduler.request_stream import RequestStream
from scheduler.timeline import Track
from scheduler.worker_stream import WorkerStream
from scheduler.worker_streams import LOOK_S
from scheduler.workers import WorkerLimits, Workers, new_registry

_log = structlog.get_logger(__name__)


class ControlLoop:
    """Owns the engine and the requests; the workers and the cache calls are its hands."""

    def __init__(
        self,
        *,
        engine_config: EngineConfig,
        model_layers: int,
        keying: PageKeying,
        hicache: HiCacheClient | None,
        limits: WorkerLimits,
        on_ready: Callable[[bool], None],
    ) -> None:
        """Start without workers and requests; on_ready hears when a route stands or breaks."""
        self.config = engine_config
        self.engine = Engine(engine_config)
        self.workers = Workers(
            registry=new_registry(model_layers, engine_config.page_tokens, limits.patience),
            on_event=self._handle,
            max_microbatch_tokens=engine_config.max_microbatch_tokens,
            keying=keying,
        )
        self._cache_report = CacheReport()
        self._recovery_report = RecoveryReport()
        self._pipeline_report = PipelineReport()
        self._cache = CacheCalls(hicache, self._handle)
        self._chunk_report = ChunkReport(
            engine_config.chunk_strategy, is_default=engine_config.is_default_strategy
        )
        self._worker_timeout_s = limits.silence_s
        self._on_ready = on_ready
        self.requests = OpenRequests(self._request_ended)
        self._num_preemptions = 0
        """Those that the metric has counted."""
        self._ended = asyncio.Event()
        """Set whenever a request ends, or a part of a store, or the route."""

    async def run(self) -> None:
        """Look at the clock until cancelled.

        Raises:
            Exception: a call to the cache failed by a bug.
        """
        try:
            while True:
                await asyncio.sleep(LOOK_S)
                deaf_s = self.workers.look_at_clock(self._worker_timeout_s)
                self._handle(events.Tick(deaf_s=deaf_s))
                self._show_engine()
                self._cache.check()
                self._cache.renew_leases(time.monotonic())
        finally:
            await self._cache.close()

    async def until_idle(self) -> None:
        """Wait until no request waits or runs."""
        while len(self.requests):
            self._ended.clear()
            await self._ended.wait()

    async def write_back(self) -> None:
        """Store what only the workers hold, if the write policy is so, and wait for that."""
        now_s = time.monotonic()
        for action in self.engine.flush(now_s):
            self._perform(action, now_s)
        while self.engine.snapshot().num_unwritten_pages:
            self._ended.clear()
            await self._ended.wait()
        await self._cache.ended()

    def unready_reason(self) -> str:
        """Why requests cannot run now, in words; empty if they can."""
        return self.workers.registry.reason()

    def refusal_reason(self) -> str:
        """Why new requests may not even wait, in words; empty if they may."""
        is_awaited = self.engine.awaits_route(time.monotonic())
        return "" if is_awaited else self.unready_reason()

    def submit(self, spec: events.RequestSpec, stream: RequestStream) -> Track:
        """Begin a request; return when the stages will have worked on it.

        Raises:
            StageUnavailable: no route stands or is awaited; the text names what is missing.
        """
        reason = self.refusal_reason()
        if reason:
            raise StageUnavailable(reason, retry_after_s=ROUTE_RETRY_S)
        track = self.workers.timeline.follow(spec.request_id, arrived_s=stream.arrived_s)
        self.requests.add(spec.request_id, stream, track)
        self._handle(events.Arrived(spec=spec))
        return track

    def abort(self, request_id: str) -> bool:
        """End a request; its stream hears the end. False if there is none of this id."""
        if request_id not in self.requests:
            return False
        self._handle(events.Cancelled(request_id=request_id, cause="abort"))
        return True

    def forget(self, request_id: str, stream: RequestStream) -> None:
        """End the request of a stream whose client is gone.

        Nothing if it has ended: a later request of the same id is another's.
        """
        if self.requests.stream(request_id) is stream:
            self.requests.end(request_id)
            self._handle(events.Cancelled(request_id=request_id, cause="gone"))

    def fail_all(self, error: ChunkMeshError) -> None:
        """End every request by an error; its stream hears it."""
        for request_id, stream in self.requests.streams():
            stream.fail(error)
            self.forget(request_id, stream)

    def hear(self, stream: WorkerStream, message: pb.AttachRequest) -> None:
        """Take one message of an attached worker."""
        if message.WhichOneof("event") == "load_done" and message.load_done.bad_digests:
            self._cache.invalidate(tuple(message.load_done.bad_digests))
        self.workers.hear(stream, message)

    def _handle(self, event: events.Event) -> None:
        """Let the engine decide, and do what it says in order."""
        now_s = time.monotonic()
        for action in self.engine.handle(event, now_s):
            self._perform(action, now_s)
        if isinstance(event, events.RouteFormed):
            self._tell_chunks()
            self._tell_of_stores(event)
        if isinstance(event, (events.Stored, events.RouteLost)):
            self._ended.set()
        if isinstance(event, (events.RouteFormed, events.RouteLost)):
            self._on_ready(bool(self.workers.routes))

    def _perform(self, action: actions.Action, now_s: float) -> None:
        """Do one action; none of them waits."""
        match action:
            case actions.SendMicrobatch():
                self.workers.timeline.sent(action)
                orders = codec.microbatch_orders(action, len(self.workers.route(action.epoch)))
                self.workers.send(action.epoch, orders)
            case (
                actions.SendLoad()
                | actions.SendEndLoad()
                | actions.SendCommitLoad()
                | actions.SendCancelLoad()
                | actions.SendStore()
                | actions.SendSavePages()
                | actions.SendCopyPages()
                | actions.SendRelease()
            ):
                num_stages = len(self.workers.route(action.epoch))
                self.workers.send(action.epoch, codec.stage_orders(action, num_stages))
            case actions.FenceStage(epoch=epoch, stage=stage, reason=reason):
                _log.warning("stage fenced", epoch=epoch, stage=stage, reason=reason)
                self.workers.fence(epoch, stage, reason)
            case actions.MatchPrefix():
                self._cache.match(action)
            case actions.CheckStored():
                self._cache.check_stored(action)
            case actions.ReleaseLease():
                self._cache.release_lease(action)
            case actions.InvalidatePages(digests=digests):
                self._cache.invalidate(digests)
            case actions.CommitPages():
                self._commit(action)
            case (
                actions.Progress()
                | actions.PromptLogprobs()
                | actions.Output()
                | actions.Finished()
                | actions.Failed()
            ):
                self.requests.tell(action, now_s)
            case _:
                assert_never(action)

    def _commit(self, action: actions.CommitPages) -> None:
        """Report stored pages with the layers of the stage that wrote them."""
        worker = self.workers.route(action.epoch)[action.stage]
        namespace = self.workers.namespace
        assert namespace is not None, "pages were stored, so a route stands"
        self._cache.commit(
            action,
            namespace=namespace,
            layers=worker.layers,
            model_layers=worker.model_layers,
            page_bytes=worker.kv_bytes_per_token * self.workers.registry.page_tokens,
        )

    def _show_engine(self) -> None:
        """Bring metrics up to what the engine has counted, of requests that failed too."""
        now = self.engine.snapshot()
        count_preemptions(now.num_preemptions - self._num_preemptions)
        self._num_preemptions = now.num_preemptions
        show_chunks(now)
        show_census(self.engine.census())
        take_observations(self.engine.observations)
        self._pipeline_report.show(now.routes, self.workers.show())
        self._recovery_report.show(now, self.engine.recoveries.take_seconds())
        self._cache_report.show(now)

    def _tell_chunks(self) -> None:
        """Log and show how prompts are cut, on the route that stands longest."""
        self._show_engine()
        now = self.engine.snapshot()
        strategy, fits = now.chunk_strategy, next(iter(self.workers.routes.values())).fits
        self._chunk_report.tell(strategy, now.chunk_strategy_reason, fits)

    def _tell_of_stores(self, formed: events.RouteFormed) -> None:
        """Warn of a write policy by which nothing is ever stored on a route."""
        policy = self.config.write_policy
        is_kept = self.config.enable_prefix_caching or formed.num_host_pages > 0
        if policy != "write_through" and not is_kept:
            _log.warning(
                "nothing will be stored: this write policy stores what workers have kept, and they"
                " keep nothing",
                hicache_write_policy=policy,
                remedy="--hicache-write-policy write_through, or --enable-prefix-caching, or host"
                " pages of the workers (--hicache-size)",
            )

    def _request_ended(self, request_id: str) -> None:
        """Take note that a request has ended."""
        self.workers.timeline.leave(request_id)
        self._ended.set()
