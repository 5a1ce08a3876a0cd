"""The gRPC chassis: every error leaves as a status, health tells the truth, ports are honest."""

import asyncio
import contextlib
import socket
import time
from collections.abc import AsyncIterator
from typing import Any, TypeAlias, cast

import grpc
import pytest
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from chunkmesh.address import HostPort, Listen
from chunkmesh.errors import ConfigError, InvalidRequest
from chunkmesh.grpc_client import channel
from chunkmesh.grpc_options import MAX_MESSAGE_BYTES
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.status import from_rpc_error
from chunkmesh.v1 import data_plane_pb2
from tests.fault_proxy import FaultProxy

SERVICE = data_plane_pb2.DESCRIPTOR.services_by_name["DataPlane"].full_name
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"
Serving = health_pb2.HealthCheckResponse


def _listen(port: int = 0, *, explicit: bool = True) -> Listen:
    return Listen(host="127.0.0.1", port=port, flag="--port", explicit=explicit)


def _fail(request: bytes) -> None:
    if request == b"mistake":
        raise InvalidRequest("too long: 9 is over 4", field="text")
    if request.startswith(b"bug"):
        raise KeyError(request.decode())


async def _unary(request: bytes, context: Context) -> bytes:
    if request == b"abort":
        await context.abort(grpc.StatusCode.OUT_OF_RANGE, "on purpose")
    _fail(request)
    return request


async def _generator(request: bytes, _context: Context) -> AsyncIterator[bytes]:
    yield b"first"
    _fail(request)
    yield request


async def _writer(request: bytes, context: Context) -> None:
    await context.write(b"first")
    _fail(request)
    await context.write(request)


async def _collect(requests: AsyncIterator[bytes], _context: Context) -> bytes:
    parts = [part async for part in requests]
    _fail(b"".join(parts))
    return b"".join(parts)


async def _echo(requests: AsyncIterator[bytes], _context: Context) -> AsyncIterator[bytes]:
    async for request in requests:
        _fail(request)
        yield request


async def _forever(_request: bytes, _context: Context) -> AsyncIterator[bytes]:
    yield b"first"
    await asyncio.Event().wait()


def _chassis() -> GrpcServer:
    chassis = GrpcServer(SERVICE)
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {
        "Unary": grpc.unary_unary_rpc_method_handler(_unary),
        "Generator": grpc.unary_stream_rpc_method_handler(_generator),
        "Writer": grpc.unary_stream_rpc_method_handler(_writer),
        "Collect": grpc.stream_unary_rpc_method_handler(_collect),
        "Echo": grpc.stream_stream_rpc_method_handler(_echo),
        "Forever": grpc.unary_stream_rpc_method_handler(_forever),
    }
    handler = grpc.method_handlers_generic_handler("test.Echo", handlers)
    chassis.server.add_generic_rpc_handlers((handler,))
    return chassis


@contextlib.asynccontextmanager
async def _served(
    chassis: GrpcServer | None = None, *, grace_s: float = 0.1
) -> AsyncIterator[grpc.aio.Channel]:
    async with (chassis or _chassis()).listening(_listen(), grace_s=grace_s) as address:
        connection = channel(address)
        async with connection:
            yield connection


async def _call(connection: Any, method: str, request: bytes) -> list[bytes]:
    """Return all replies of a test method."""
    path = f"/test.Echo/{method}"
    if method == "Unary":
        return [await connection.unary_unary(path)(request)]
    if method == "Collect":
        return [await connection.stream_unary(path)(iter([request]))]
    if method == "Echo":
        return [reply async for reply in connection.stream_stream(path)(iter([request]))]
    return [reply async for reply in connection.unary_stream(path)(request)]


def _health(connection: grpc.aio.Channel) -> Any:
    return health_pb2_grpc.HealthStub(connection)


METHODS = ["Unary", "Generator", "Writer", "Collect", "Echo"]


@pytest.mark.parametrize("method", METHODS)
async def test_replies_pass_unchanged(method: str) -> None:
    """The interceptor is invisible while all goes well."""
    async with _served() as connection:
        replies = await _call(connection, method, b"hello")
    assert replies[-1] == b"hello"


@pytest.mark.parametrize("method", METHODS)
async def test_errors_arrive_as_raised(method: str) -> None:
    """A caller's mistake keeps its text and its field over every kind of RPC."""
    async with _served() as connection:
        with pytest.raises(grpc.RpcError) as caught:
            await _call(connection, method, b"mistake")
    error = from_rpc_error(caught.value)
    assert isinstance(error, InvalidRequest)
    assert (str(error), error.field) == ("too long: 9 is over 4", "text")


@pytest.mark.parametrize("method", METHODS)
async def test_a_bug_leaks_no_text(method: str) -> None:
    """Neither client nor log sees what an unexpected error quotes, but the log has its place."""
    with structlog.testing.capture_logs() as logs:
        async with _served() as connection:
            with pytest.raises(grpc.RpcError) as caught:
                await _call(connection, method, b"bug secret")
    (failed,) = [line for line in logs if line["event"] == "rpc failed"]
    assert caught.value.code() is grpc.StatusCode.INTERNAL
    assert "secret" not in repr(caught.value)
    assert "secret" not in repr(failed)
    assert (failed["error"], failed["method"]) == ("KeyError", f"/test.Echo/{method}")
    assert "in _fail" in failed["stack"]


async def test_a_servicers_own_abort_passes() -> None:
    """Aborting is not a bug."""
    async with _served() as connection:
        with pytest.raises(grpc.RpcError) as caught:
            await _call(connection, "Unary", b"abort")
    assert caught.value.code() is grpc.StatusCode.OUT_OF_RANGE


async def test_an_unknown_method_is_unimplemented() -> None:
    """Clients of a newer version are told so."""
    async with _served() as connection:
        with pytest.raises(grpc.RpcError) as caught:
            await _call(connection, "Nothing", b"")
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


async def test_messages_up_to_the_limit_pass_and_over_it_are_refused() -> None:
    """A prompt of a million ids passes; what is too long is an error, not a hang (O14)."""
    async with _served() as connection:
        near = bytes(MAX_MESSAGE_BYTES - 1024)
        assert len(near) == len((await _call(connection, "Unary", near))[0])
        with pytest.raises(grpc.RpcError) as caught:
            await _call(connection, "Unary", bytes(MAX_MESSAGE_BYTES + 1))
    assert isinstance(from_rpc_error(caught.value), InvalidRequest)


async def _check(connection: grpc.aio.Channel, service: str) -> int:
    stub = _health(connection)
    reply = await stub.Check(health_pb2.HealthCheckRequest(service=service))
    return int(reply.status)


@pytest.mark.parametrize("service", ["", SERVICE])
async def test_health_is_not_serving_until_told(service: str) -> None:
    """No traffic may come before the layers are covered."""
    chassis = _chassis()
    async with _served(chassis) as connection:
        assert await _check(connection, service) == Serving.NOT_SERVING
        chassis.set_serving(serving=True)
        assert await _check(connection, service) == Serving.SERVING


async def test_health_of_an_unknown_service_is_not_found() -> None:
    """A probe with a typo must not look like a sick server."""
    async with _served() as connection:
        with pytest.raises(grpc.RpcError) as caught:
            await _check(connection, "nothing")
    assert caught.value.code() is grpc.StatusCode.NOT_FOUND


async def test_a_watch_hears_every_change_and_the_stop() -> None:
    """Watchers learn of the stop, and do not hold it up for the whole grace."""
    chassis = _chassis()
    stop = asyncio.Event()
    ports = asyncio.Queue[HostPort](maxsize=1)

    async def serve() -> None:
        async with chassis.listening(_listen(), grace_s=30) as address:
            ports.put_nowait(address)
            await stop.wait()

    async with asyncio.TaskGroup() as tasks, asyncio.timeout(10):
        tasks.create_task(serve())
        async with channel(await ports.get()) as connection:
            stub = _health(connection)
            seen = []
            async for reply in stub.Watch(health_pb2.HealthCheckRequest()):
                seen.append(reply.status)
                if len(seen) == 1:
                    chassis.set_serving(serving=True)
                else:
                    stop.set()
    assert seen == [Serving.NOT_SERVING, Serving.SERVING, Serving.NOT_SERVING]


async def test_a_watch_of_an_unknown_service_says_so() -> None:
    """The protocol wants SERVICE_UNKNOWN here, not an error."""
    async with _served() as connection:
        stub = _health(connection)
        reply = await stub.Watch(health_pb2.HealthCheckRequest(service="nothing")).read()
    assert reply.status == Serving.SERVICE_UNKNOWN


async def test_reflection_lists_and_describes_the_services() -> None:
    """Tools such as grpcurl need no proto files."""
    requests = [
        reflection_pb2.ServerReflectionRequest(list_services=""),
        reflection_pb2.ServerReflectionRequest(file_containing_symbol=SERVICE),
    ]
    async with _served() as connection:
        stub: Any = reflection_pb2_grpc.ServerReflectionStub(cast("grpc.Channel", connection))
        replies = [reply async for reply in stub.ServerReflectionInfo(iter(requests))]
    names = {service.name for service in replies[0].list_services_response.service}
    assert {
        SERVICE,
        "grpc.health.v1.Health",
        "grpc.reflection.v1alpha.ServerReflection",
    } == names
    assert b"data_plane.proto" in replies[1].file_descriptor_response.file_descriptor_proto[0]


async def test_a_chosen_port_in_use_is_an_error() -> None:
    """Two servers on one port would share its calls unseen."""
    async with _chassis().listening(_listen()) as taken:
        with pytest.raises(ConfigError, match=f"port {taken.port} is in use .* with --port"):
            async with _chassis().listening(_listen(taken.port)):
                pass


async def test_a_default_port_in_use_moves_on() -> None:
    """A second mesh on one machine starts without flags, and says where it listens."""
    with structlog.testing.capture_logs() as logs:
        async with (
            _chassis().listening(_listen()) as taken,
            _chassis().listening(_listen(taken.port, explicit=False)) as moved,
        ):
            assert moved.port > taken.port
    (line,) = [line for line in logs if line["event"] == "port moved"]
    assert (line["default"], line["port"]) == (taken.port, moved.port)


async def test_an_address_of_another_machine_is_an_error() -> None:
    """The text names the address."""
    listen = Listen(host="192.0.2.1", port=0, flag="--port", explicit=True)
    with pytest.raises(ConfigError, match=r"cannot listen on 192\.0\.2\.1:0"):
        async with _chassis().listening(listen):
            pass


async def test_only_the_given_address_is_bound() -> None:
    """A server of loopback is not reachable from the network."""
    async with _chassis().listening(_listen()) as address:
        with socket.socket() as probe:
            probe.bind(("127.0.0.2", address.port))
    assert HostPort(host="127.0.0.1", port=address.port) == address


async def test_a_server_that_is_slow_to_greet_is_waited_for() -> None:
    """On a busy machine or a far one; given up, it would be greeted again and again in vain."""
    async with _chassis().listening(_listen(), grace_s=0.1) as address:
        proxy = FaultProxy(address.port)
        proxy.fault.delay_s = 0.5
        async with proxy.listening(), channel(proxy.address) as connection:
            assert [b"x"] == await _call(connection, "Unary", b"x")


async def test_the_stop_ends_running_calls_after_its_grace() -> None:
    """A stream that never ends cannot keep a process alive."""
    async with contextlib.AsyncExitStack() as stack:
        connection = await stack.enter_async_context(_served(grace_s=0.2))
        stream: Any = connection.unary_stream("/test.Echo/Forever")
        call = stream(b"")
        assert await call.read() == b"first"
        started = time.monotonic()
    assert time.monotonic() - started < 30
    assert grpc.StatusCode.UNAVAILABLE is await asyncio.wait_for(call.code(), 10)
    assert call.done()


@pytest.mark.slow
async def test_pings_of_an_idle_stream_are_allowed() -> None:
    """A prefill may be silent for minutes; with gRPC's defaults the third ping cuts the call."""
    options = [("grpc.keepalive_time_ms", 5_000), ("grpc.http2.max_pings_without_data", 0)]
    async with (
        _chassis().listening(_listen(), grace_s=0.1) as address,
        grpc.aio.insecure_channel(str(address), options=options) as connection,
    ):
        stream: Any = connection.unary_stream("/test.Echo/Forever")
        call = stream(b"")
        assert await call.read() == b"first"
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(call.read(), timeout=20)
