"""The users' port: hands requests to the control loop and streams what comes of them."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

import grpc
import structlog

from chunkmesh.errors import ConfigError, InvalidRequest, StageUnavailable, Unavailable
from chunkmesh.trust.identity import current_identity
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from scheduler import replies, server_info, timeline_history, timeline_replies
from scheduler.control_loop import ControlLoop
from scheduler.events import RequestSpec
from scheduler.given_chunks import check_chunk_tokens
from scheduler.hicache_client import HiCacheClient
from scheduler.intake import Intake, prompt_bytes
from scheduler.leadership import AnyLeadership
from scheduler.open_calls import OpenCalls
from scheduler.parked import ROUTE_RETRY_S
from scheduler.request_metrics import count_request, counted_refusals
from scheduler.request_names import id_and_user, request_name
from scheduler.request_stream import RequestStream
from scheduler.server_info import ServedModel
from scheduler.standby import RETRY_S, check_leads
from scheduler.timeline import Track
from scheduler.validation import KvPoolSize

_Context = grpc.aio.ServicerContext[Any, Any]
_log = structlog.get_logger(__name__)


class GenerationService(generation_pb2_grpc.GenerationServicer):
    """Serves the users of one mesh."""

    def __init__(
        self,
        *,
        control_loop: ControlLoop,
        intake: Intake,
        model: ServedModel,
        hicache: HiCacheClient | None,
        leadership: AnyLeadership,
        calls: OpenCalls,
    ) -> None:
        """Serve one control loop; calls are those of the server."""
        self.draining = False
        """Whether new requests are refused because the scheduler shuts down."""
        self._loop = control_loop
        self._intake = intake
        self._model = model
        self._hicache = hicache
        self._leadership = leadership
        self._calls = calls
        self._has_warned = False
        """Of salts and tenants that no secret protects."""

    async def Generate(
        self, request: pb.GenerateRequest, context: _Context
    ) -> AsyncIterator[pb.GenerateResponse]:
        """Run one request; the call's end, however it comes, is the request's end."""
        request_id = request.request_id or secrets.token_hex(8)
        with counted_refusals():
            name, stream, track = await self._begin(request, request_id, context)
        epoch = self._loop.workers.registry.epoch
        try:
            async for response in replies.responses(request, request_id, stream, track.timings):
                stream.offered_s = time.monotonic()
                yield response
                stream.offered_s = None
        finally:
            stream.offered_s = time.monotonic()
            self._loop.forget(name, stream)
            count_request(stream)
            _log.info("request ended", request_id=request_id, epoch=epoch, **stream.summary())

    async def _begin(
        self, request: pb.GenerateRequest, request_id: str, context: _Context
    ) -> tuple[str, RequestStream, Track]:
        """Open a call, read its request and hand it to the engine, under its name there."""
        call = self._calls.begin(context, time.monotonic())
        name = request_name(request_id, call.user)
        with self._calls.reading(prompt_bytes(request)):
            spec = await self._read(request, name, call.user)
        stream = RequestStream(
            prompt_tokens=len(spec.prompt_ids),
            arrived_s=call.arrived_s,
            num_outputs=spec.num_outputs,
            max_unread_bytes=self._calls.max_unread_bytes,
            on_slow=lambda error: self._calls.end(call, error),
        )
        self._check_new(name)
        if spec.namespace != self._namespace(request):
            # Its pages' keys would name weights that no longer compute them.
            raise StageUnavailable("the model's weights have changed", retry_after_s=ROUTE_RETRY_S)
        call.stream = stream
        track = self._loop.submit(spec, stream)
        # A task that is cancelled while it sends leaves its generator to the garbage collector.
        call.task.add_done_callback(lambda _task: self._loop.forget(name, stream))
        return name, stream, track

    async def Abort(self, request: pb.AbortRequest, _context: _Context) -> pb.AbortResponse:
        """End a request; its Generate call sends the end.

        Users find their tenant's only, an operator who calls for no tenant everybody's.
        """
        caller = current_identity()
        names = [request_name(request.request_id, caller.tenant)]
        if caller.is_admin and not caller.tenant:
            names = self._loop.requests.names_of(request.request_id)
        found = [self._loop.abort(name) for name in names]
        return pb.AbortResponse(found=any(found))

    async def GetModelInfo(
        self, _request: pb.GetModelInfoRequest, _context: _Context
    ) -> pb.GetModelInfoResponse:
        """Describe the model."""
        return server_info.model_info(self._model, self._loop.workers.registry)

    async def GetServerInfo(
        self, _request: pb.GetServerInfoRequest, _context: _Context
    ) -> pb.GetServerInfoResponse:
        """Describe the mesh."""
        fault = await self._hicache.current_fault() if self._hicache else "no --hicache-url is set"
        return server_info.server_info(self._loop, self._leadership, cache_fault=fault)

    async def Tokenize(
        self, request: pb.TokenizeRequest, _context: _Context
    ) -> pb.TokenizeResponse:
        """Turn a prompt into ids, and name the pages that it fills."""
        with self._calls.reading(prompt_bytes(request)):
            ids = await self._intake.prompt_ids(request)
        registry = self._loop.workers.registry
        response = pb.TokenizeResponse(page_tokens=registry.page_tokens)
        response.input_ids.extend(ids.tolist())
        namespace = self._namespace_digest(request.cache_salt, tenant=current_identity().tenant)
        if namespace is not None:
            digests = await self._intake.digests(ids, namespace, registry.page_tokens)
            response.page_digests.extend(digests)
            response.namespace = namespace
        return response

    async def Detokenize(
        self, request: pb.DetokenizeRequest, _context: _Context
    ) -> pb.DetokenizeResponse:
        """Tell what single ids add to a text."""
        return pb.DetokenizeResponse(tokens=await self._intake.token_bytes(request.ids))

    async def FlushCache(
        self, _request: pb.FlushCacheRequest, context: _Context
    ) -> pb.FlushCacheResponse:
        """Forget every cached prefix, the devices' first: that cannot fail."""
        check_leads(self._leadership)
        has_host_pages = self._loop.engine.snapshot().num_host_pages > 0
        num_device_pages = self._loop.engine.forget_cached()
        if self._hicache is None and (self._loop.config.enable_prefix_caching or has_host_pages):
            return pb.FlushCacheResponse(num_pages=num_device_pages)
        if self._hicache is None:
            raise ConfigError("this scheduler has no prefix cache: start it with --hicache-url")
        num_pages = await self._hicache.clear(current_identity().name or context.peer())
        if num_pages is None:
            raise Unavailable(f"the prefix cache does not answer: {self._hicache.fault}")
        return pb.FlushCacheResponse(num_pages=num_pages)

    async def GetTimelines(
        self, request: pb.GetTimelinesRequest, _context: _Context
    ) -> AsyncIterator[pb.GetTimelinesResponse]:
        """Tell when the stages worked on requests; of all tenants if the caller names none."""
        tenant = current_identity().tenant
        known = (
            each for each in self._loop.requests.timelines() if not tenant or each.user == tenant
        )
        for timeline in timeline_history.chosen(
            known, request_ids=request.request_ids, last=request.last
        ):
            yield await timeline_replies.response(timeline, now_s=time.monotonic())

    async def _read(self, request: pb.GenerateRequest, name: str, user: str) -> RequestSpec:
        """Check a request; without a route none is looked at."""
        self._check_new(name)
        spec = await self._intake.read(
            request,
            name,
            user=user,
            is_operator=current_identity().is_admin,
            namespace=self._namespace(request),
            pool=KvPoolSize(
                num_pages=self._loop.engine.snapshot().num_route_pages,
                page_tokens=self._loop.workers.registry.page_tokens,
            ),
        )
        check_chunk_tokens(
            spec.chunk_tokens,
            prompt_tokens=len(spec.prompt_ids),
            max_tokens=self._loop.config.chunked_prefill_tokens,
        )
        return spec

    def _namespace(self, request: pb.GenerateRequest) -> bytes:
        """Return the namespace of a request's pages on the routes that stand, or stood last.

        Raises:
            StageUnavailable: none stands or is awaited.
        """
        reason = self._loop.refusal_reason()
        namespace = self._namespace_digest(request.cache_salt, tenant=current_identity().tenant)
        if reason or namespace is None:
            raise StageUnavailable(reason, retry_after_s=RETRY_S)
        return namespace

    def _namespace_digest(self, cache_salt: str, *, tenant: str) -> bytes | None:
        """Return the namespace of a tenant's pages of a salt; None before the first route."""
        workers = self._loop.workers
        if (cache_salt or tenant) and not workers.has_secret and not self._has_warned:
            self._has_warned = True
            _log.warning("cache_salt or tenant without --cache-secret-file", risk="can be guessed")
        return workers.namespace_digest(tenant=tenant, cache_salt=cache_salt)

    def _check_new(self, name: str) -> None:
        """Refuse a request that cannot begin now."""
        if self.draining:
            raise Unavailable("the scheduler is shutting down", retry_after_s=RETRY_S)
        check_leads(self._leadership)
        if name in self._loop.requests:
            request_id, _ = id_and_user(name)
            raise InvalidRequest(
                f"request_id {request_id!r} is that of a running request", field="request_id"
            )
