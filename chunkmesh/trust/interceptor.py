"""A server interceptor: every call passes the port's guard before its servicer hears of it."""

from __future__ import annotations

import inspect
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc
import structlog

from chunkmesh.errors import ChunkMeshError, Forbidden, Unauthenticated
from chunkmesh.rpc_parts import Behavior, RpcContext, RpcHandler, parts
from chunkmesh.trust.access import is_open
from chunkmesh.trust.guard import Guard, Metadata, PeerCertificate, on_behalf
from chunkmesh.trust.identity import Identity, set_current_identity
from chunkmesh.trust.metrics import REFUSED_CALLS

_LOG_PAUSE_S = 10.0
_NO_CERTIFICATE: PeerCertificate = {}
_log = structlog.get_logger(__name__)


class GuardInterceptor(grpc.aio.ServerInterceptor):
    """Turns callers away; to be put behind the interceptor that makes statuses of errors."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._quiet_until_s = 0.0
        """Strangers may call often; the log hears of it now and then, the metric always."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[RpcHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> RpcHandler | None:
        """Return the handler behind the guard, or one that refuses before it reads anything."""
        handler = await continuation(handler_call_details)
        method = handler_call_details.method
        if handler is None or is_open(method):
            return handler
        metadata: Metadata = tuple(handler_call_details.invocation_metadata or ())
        try:
            by_key = self._guard.by_key(metadata)
            if not self._guard.is_mutual:
                self._known(by_key, metadata, _NO_CERTIFICATE, method)
        except (Unauthenticated, Forbidden) as error:
            self._note(error, method)
            return _refusing(error)

        def admit(context: RpcContext) -> None:
            peer = context.auth_context() if self._guard.is_mutual else _NO_CERTIFICATE
            try:
                identity = self._known(by_key, metadata, peer, method)
            except (Unauthenticated, Forbidden) as error:
                self._note(error, method)
                raise
            set_current_identity(identity)

        make, behavior = parts(handler)
        wrap = _before_generator if inspect.isasyncgenfunction(behavior) else _before_coroutine
        return make(
            wrap(behavior, admit),
            request_deserializer=handler.request_deserializer,
            response_serializer=handler.response_serializer,
        )

    def _known(
        self, by_key: Identity | None, metadata: Metadata, peer: PeerCertificate, method: str
    ) -> Identity:
        """Return who calls, if he may.

        Raises:
            Unauthenticated: he does not say who he is.
            Forbidden: he may not.
        """
        identity = self._guard.identify(by_key, peer)
        self._guard.check(identity, method)
        return on_behalf(identity, metadata)

    def _note(self, error: ChunkMeshError, method: str) -> None:
        """Count a refusal, and tell of it if none was told a moment ago."""
        door, reason = self._guard.door.value, type(error).__name__.lower()
        REFUSED_CALLS.labels(door, reason).inc()
        now_s = time.monotonic()
        if now_s >= self._quiet_until_s:
            self._quiet_until_s = now_s + _LOG_PAUSE_S
            _log.warning("call refused", door=door, method=method, reason=str(error))


def _refusing(error: ChunkMeshError) -> RpcHandler:
    """Return a handler that ends a call of any kind with an error."""

    async def refuse(_requests: Any, _context: RpcContext) -> AsyncIterator[Any]:  # noqa: ANN401
        raise error
        yield

    return grpc.stream_stream_rpc_method_handler(refuse)


def _before_coroutine(behavior: Behavior, admit: Callable[[RpcContext], None]) -> Behavior:
    async def admitted(request: Any, context: RpcContext) -> Any:  # noqa: ANN401 - see rpc_parts
        admit(context)
        return await behavior(request, context)

    return admitted


def _before_generator(behavior: Behavior, admit: Callable[[RpcContext], None]) -> Behavior:
    async def admitted(request: Any, context: RpcContext) -> AsyncIterator[Any]:  # noqa: ANN401
        admit(context)
        replies = behavior(request, context)
        try:
            async for reply in replies:
                yield reply
        finally:
            await replies.aclose()

    return admitted
