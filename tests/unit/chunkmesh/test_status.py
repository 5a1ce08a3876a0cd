"""Errors cross a gRPC border unchanged."""

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2

from chunkmesh import errors
from chunkmesh.status import DETAILS_KEY, from_rpc_error, to_status


def _as_client_sees_it(error: errors.ChunkMeshError) -> grpc.aio.AioRpcError:
    status = to_status(error)
    return grpc.aio.AioRpcError(
        code=status.code,
        initial_metadata=grpc.aio.Metadata(),
        trailing_metadata=grpc.aio.Metadata(*status.trailing_metadata),
        details=status.message,
    )


def _without_details(code: grpc.StatusCode, details: str = "text") -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (errors.NotFound("x"), grpc.StatusCode.NOT_FOUND),
        (errors.InvalidRequest("x"), grpc.StatusCode.INVALID_ARGUMENT),
        (errors.ConfigError("x"), grpc.StatusCode.FAILED_PRECONDITION),
        (errors.Unavailable("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.StageUnavailable("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.Standby("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.Overloaded("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.SlowReader("x"), grpc.StatusCode.RESOURCE_EXHAUSTED),
        (errors.DeadlineExceeded("x"), grpc.StatusCode.DEADLINE_EXCEEDED),
        (errors.StaleEpoch("x"), grpc.StatusCode.ABORTED),
        (errors.LinkError("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.CacheFault("x"), grpc.StatusCode.UNAVAILABLE),
        (errors.ModelFault("x"), grpc.StatusCode.INTERNAL),
        (errors.InvariantViolated("x"), grpc.StatusCode.INTERNAL),
        (errors.ChunkMeshError("x"), grpc.StatusCode.UNKNOWN),
    ],
)
def test_every_error_round_trips(error: errors.ChunkMeshError, code: grpc.StatusCode) -> None:
    """A client can catch what the server raised."""
    received = from_rpc_error(_as_client_sees_it(error))
    assert code is to_status(error).code
    assert (type(error), str(error)) == (type(received), str(received))


def test_no_error_is_without_a_status() -> None:
    """A new error class must be given its place in the table."""
    subclasses = [
        error
        for error in vars(errors).values()
        if isinstance(error, type) and issubclass(error, errors.ChunkMeshError)
    ]
    unknown = [
        error for error in subclasses if to_status(error("x")).code is grpc.StatusCode.UNKNOWN
    ]
    assert [errors.ChunkMeshError] == unknown


def test_the_field_at_fault_round_trips() -> None:
    """Clients can point at the field."""
    sent = errors.InvalidRequest("top_p 2 is over 1", field="sampling_params.top_p")
    received = from_rpc_error(_as_client_sees_it(sent))
    assert isinstance(received, errors.InvalidRequest)
    assert sent.field == received.field


@pytest.mark.parametrize("retry_after_s", [None, 0.25, 2.0])
def test_the_retry_delay_round_trips(retry_after_s: float | None) -> None:
    """Clients know when to come back, or that nobody knows."""
    sent = errors.Overloaded("full", retry_after_s=retry_after_s)
    received = from_rpc_error(_as_client_sees_it(sent))
    assert isinstance(received, errors.Overloaded)
    assert retry_after_s == received.retry_after_s


@pytest.mark.parametrize("active", ["", "10.0.0.2:50051"])
def test_the_active_scheduler_round_trips(active: str) -> None:
    """Clients of a standby know whom to ask instead, or that nobody knows."""
    sent = errors.Standby("standby", retry_after_s=0.5, active=active)
    received = from_rpc_error(_as_client_sees_it(sent))
    assert isinstance(received, errors.Standby)
    assert (active, 0.5) == (received.active, received.retry_after_s)


def test_details_are_readable_without_our_code() -> None:
    """Other languages read google.rpc details."""
    status = status_pb2.Status.FromString(to_status(errors.StaleEpoch("old")).details)
    info = error_details_pb2.ErrorInfo()
    assert status.details[0].Unpack(info)
    assert (info.reason, info.domain) == ("STALE_EPOCH", "chunkmesh")


def test_a_message_over_the_size_limit_is_the_callers_mistake() -> None:
    """GRPC reports it as RESOURCE_EXHAUSTED, but trying again cannot help."""
    text = "SERVER: Received message larger than max (9 vs. 4)"
    received = from_rpc_error(_without_details(grpc.StatusCode.RESOURCE_EXHAUSTED, text))
    assert (errors.InvalidRequest, text) == (type(received), str(received))


def test_a_deadline_is_named() -> None:
    """The text says what happened, although the class is Unavailable."""
    received = from_rpc_error(_without_details(grpc.StatusCode.DEADLINE_EXCEEDED))
    assert (errors.Unavailable, "no answer in time: text") == (type(received), str(received))


def test_broken_details_are_ignored() -> None:
    """A hostile or foreign server cannot make the client fail in another way."""
    error = grpc.aio.AioRpcError(
        grpc.StatusCode.UNAVAILABLE,
        grpc.aio.Metadata(),
        grpc.aio.Metadata((DETAILS_KEY, b"\xff\xff")),
        "text",
    )
    assert type(from_rpc_error(error)) is errors.Unavailable


def test_a_long_message_is_cut() -> None:
    """Trailers over 8 KiB would break the connection."""
    assert len(to_status(errors.InvalidRequest("x" * 10000)).message) == 1000
