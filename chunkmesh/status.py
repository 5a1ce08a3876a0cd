"""The one table between errors and gRPC statuses, for servers and for clients.

A status carries google.rpc details: ErrorInfo with the reason, and for a standby the address of the
active scheduler; BadRequest with the field at fault; RetryInfo where trying again may help.
Source: https://cloud.google.com/apis/design/errors#error_model
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import TypeVar, cast

import grpc
from google.protobuf import any_pb2
from google.protobuf.message import DecodeError, Message
from google.rpc import error_details_pb2, status_pb2

from chunkmesh.errors import (
    CacheFault,
    ChunkMeshError,
    ConfigError,
    DeadlineExceeded,
    Forbidden,
    InvalidRequest,
    InvariantViolated,
    LinkError,
    ModelFault,
    NotFound,
    Overloaded,
    SlowReader,
    StageUnavailable,
    StaleEpoch,
    Standby,
    Unauthenticated,
    Unavailable,
)

DOMAIN = "chunkmesh"
DETAILS_KEY = "grpc-status-details-bin"
_ACTIVE = "active"
"""Key of ErrorInfo's metadata: HOST:PORT of the scheduler to ask instead."""
_TOO_MANY_CALLS = "Concurrent RPC limit exceeded!"
"""gRPC's words, which come without details."""
_MAX_MESSAGE_CHARACTERS = 1000  # it travels twice in the trailers, which peers cap at 8 KiB

_Detail = TypeVar("_Detail", bound=Message)

_CODES: Mapping[type[ChunkMeshError], tuple[grpc.StatusCode, str]] = {
    InvalidRequest: (grpc.StatusCode.INVALID_ARGUMENT, "INVALID_REQUEST"),
    NotFound: (grpc.StatusCode.NOT_FOUND, "NOT_FOUND"),
    Unauthenticated: (grpc.StatusCode.UNAUTHENTICATED, "UNAUTHENTICATED"),
    Forbidden: (grpc.StatusCode.PERMISSION_DENIED, "FORBIDDEN"),
    ConfigError: (grpc.StatusCode.FAILED_PRECONDITION, "CONFIG_ERROR"),
    StageUnavailable: (grpc.StatusCode.UNAVAILABLE, "STAGE_UNAVAILABLE"),
    Standby: (grpc.StatusCode.UNAVAILABLE, "STANDBY"),
    Overloaded: (grpc.StatusCode.RESOURCE_EXHAUSTED, "OVERLOADED"),
    SlowReader: (grpc.StatusCode.RESOURCE_EXHAUSTED, "SLOW_READER"),
    DeadlineExceeded: (grpc.StatusCode.DEADLINE_EXCEEDED, "DEADLINE_EXCEEDED"),
    Unavailable: (grpc.StatusCode.UNAVAILABLE, "UNAVAILABLE"),
    StaleEpoch: (grpc.StatusCode.ABORTED, "STALE_EPOCH"),
    LinkError: (grpc.StatusCode.UNAVAILABLE, "LINK_ERROR"),
    CacheFault: (grpc.StatusCode.UNAVAILABLE, "CACHE_FAULT"),
    ModelFault: (grpc.StatusCode.INTERNAL, "MODEL_FAULT"),
    InvariantViolated: (grpc.StatusCode.INTERNAL, "INVARIANT_VIOLATED"),
}
_ERRORS = {reason: error for error, (_, reason) in _CODES.items()}

_ERRORS_WITHOUT_REASON: Mapping[grpc.StatusCode, type[ChunkMeshError]] = {
    grpc.StatusCode.UNAVAILABLE: Unavailable,
    grpc.StatusCode.DEADLINE_EXCEEDED: Unavailable,
    grpc.StatusCode.CANCELLED: Unavailable,
    grpc.StatusCode.INVALID_ARGUMENT: InvalidRequest,
    grpc.StatusCode.NOT_FOUND: InvalidRequest,
    # gRPC itself says this of a message over the size limit; our own overload has a reason.
    grpc.StatusCode.RESOURCE_EXHAUSTED: InvalidRequest,
    grpc.StatusCode.ABORTED: StaleEpoch,
    grpc.StatusCode.FAILED_PRECONDITION: ConfigError,
    grpc.StatusCode.UNAUTHENTICATED: Unauthenticated,
    grpc.StatusCode.PERMISSION_DENIED: Forbidden,
}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RpcStatus:
    """How a failed RPC ends, in the parts that a servicer context's abort takes."""

    code: grpc.StatusCode
    message: str
    details: bytes
    """A serialized google.rpc.Status."""

    @property
    def trailing_metadata(self) -> tuple[tuple[str, bytes], ...]:
        """Metadata that carries the details."""
        return ((DETAILS_KEY, self.details),)


def to_status(error: ChunkMeshError) -> RpcStatus:
    """Return the status that tells a client of this error."""
    code, reason = next(
        (_CODES[kind] for kind in type(error).__mro__ if kind in _CODES),
        (grpc.StatusCode.UNKNOWN, "UNKNOWN"),
    )
    message = str(error)[:_MAX_MESSAGE_CHARACTERS]
    status = status_pb2.Status(code=code.value[0], message=message)
    info = error_details_pb2.ErrorInfo(reason=reason, domain=DOMAIN)
    if isinstance(error, Standby) and error.active:
        info.metadata[_ACTIVE] = error.active
    status.details.add().Pack(info)
    if isinstance(error, InvalidRequest) and error.field:
        violation = error_details_pb2.BadRequest.FieldViolation(
            field=error.field, description=message
        )
        status.details.add().Pack(error_details_pb2.BadRequest(field_violations=[violation]))
    if isinstance(error, Unavailable) and error.retry_after_s is not None:
        retry = error_details_pb2.RetryInfo()
        retry.retry_delay.FromNanoseconds(round(error.retry_after_s * 1e9))
        status.details.add().Pack(retry)
    return RpcStatus(code=code, message=message, details=status.SerializeToString())


def from_rpc_error(error: grpc.RpcError) -> ChunkMeshError:
    """Return the error that the server meant; without details, the nearest by status code."""
    code = error.code() or grpc.StatusCode.UNKNOWN
    message = error.details() or code.name
    details = tuple(_details(error))
    info = _find(error_details_pb2.ErrorInfo(), details)
    known = _ERRORS.get(info.reason) if info.domain == DOMAIN else None
    kind = known or _ERRORS_WITHOUT_REASON.get(code, ChunkMeshError)
    if known is None and message == _TOO_MANY_CALLS:
        kind = Overloaded
    if known is None and code is grpc.StatusCode.DEADLINE_EXCEEDED:
        message = f"no answer in time: {message}"
    if issubclass(kind, InvalidRequest):
        violations = _find(error_details_pb2.BadRequest(), details).field_violations
        return kind(message, field=violations[0].field if violations else "")
    if issubclass(kind, Unavailable):
        retry = _find(error_details_pb2.RetryInfo(), details)
        after_s = retry.retry_delay.ToNanoseconds() / 1e9 if retry.HasField("retry_delay") else None
        if issubclass(kind, Standby):
            return kind(message, retry_after_s=after_s, active=info.metadata.get(_ACTIVE, ""))
        return kind(message, retry_after_s=after_s)
    return kind(message)


def _details(error: grpc.RpcError) -> Iterable[any_pb2.Any]:
    metadata = cast("Iterable[tuple[str, str | bytes]]", error.trailing_metadata() or ())
    for key, value in metadata:
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                yield from status_pb2.Status.FromString(value).details
            except DecodeError:
                return


def _find(into: _Detail, details: Iterable[any_pb2.Any]) -> _Detail:
    """Fill into from the first detail of its type; it stays empty without one."""
    for detail in details:
        if detail.TypeName() == into.DESCRIPTOR.full_name:
            try:
                detail.Unpack(into)
            except DecodeError:
                into.Clear()
            return into
    return into
