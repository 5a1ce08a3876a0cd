"""A server interceptor: every error of a servicer leaves as a status with details.

Errors raised on purpose are mapped by chunkmesh.status. Anything else is a bug: it becomes
INTERNAL, and only its type and place are logged, for its text may quote a prompt. A single request
whose bytes are no message is the caller's mistake.
"""

from __future__ import annotations

import dataclasses
import inspect
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Never

import grpc
import structlog
from google.protobuf.message import DecodeError

from chunkmesh.errors import ChunkMeshError, InvalidRequest, InvariantViolated
from chunkmesh.rpc_parts import Behavior, RpcContext, RpcHandler, parts
from chunkmesh.status import to_status

_log = structlog.get_logger(__name__)


class ErrorInterceptor(grpc.aio.ServerInterceptor):
    """Wraps every handler of a server, unary or streaming."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[RpcHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> RpcHandler | None:
        """Return the handler with its behaviour wrapped; None if the method is unknown."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        method = handler_call_details.method
        make, behavior = parts(handler)
        wrap = _guard_generator if inspect.isasyncgenfunction(behavior) else _guard_coroutine
        deserialize = handler.request_deserializer
        if deserialize is not None and not handler.request_streaming:
            deserialize = _tolerant(deserialize)
        return make(
            wrap(behavior, method),
            request_deserializer=deserialize,
            response_serializer=handler.response_serializer,
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Malformed:
    """What stands for a request that could not be read; gRPC itself would answer UNKNOWN."""

    reason: str


def _tolerant(deserialize: Callable[[bytes], Any]) -> Callable[[bytes], Any]:
    """Let a request that cannot be read reach the guard."""

    def read(data: bytes) -> Any:  # noqa: ANN401 - see rpc_parts
        try:
            return deserialize(data)
        except DecodeError as error:
            return _Malformed(reason=str(error))

    return read


def _check_whole(request: Any) -> None:  # noqa: ANN401 - see rpc_parts
    if isinstance(request, _Malformed):
        raise InvalidRequest(f"the request's bytes are no message: {request.reason}")


def _guard_coroutine(behavior: Behavior, method: str) -> Behavior:
    async def guarded(request: Any, context: RpcContext) -> Any:  # noqa: ANN401 - see rpc_parts
        try:
            _check_whole(request)
            return await behavior(request, context)
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the chassis ends every RPC with a status
            await _abort(context, error, method)

    return guarded


def _guard_generator(behavior: Behavior, method: str) -> Behavior:
    async def guarded(request: Any, context: RpcContext) -> AsyncIterator[Any]:  # noqa: ANN401
        replies = behavior(request, context)
        try:
            _check_whole(request)
            async for reply in replies:
                yield reply
        except grpc.aio.AbortError:
            raise
        except Exception as error:  # noqa: BLE001 - the chassis ends every RPC with a status
            await _abort(context, error, method)
        finally:
            await replies.aclose()

    return guarded


async def _abort(context: RpcContext, error: Exception, method: str) -> Never:
    expected = isinstance(error, ChunkMeshError) and not isinstance(error, InvariantViolated)
    if not expected:
        stack = traceback.format_list(traceback.extract_tb(error.__traceback__))
        _log.error("rpc failed", method=method, error=type(error).__name__, stack="".join(stack))
    if not isinstance(error, ChunkMeshError):
        error = InvariantViolated("internal error; the service's log has its place")
    status = to_status(error)
    await context.abort(status.code, status.message, status.trailing_metadata)
