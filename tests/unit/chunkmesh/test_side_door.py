"""The HTTP side door, asked over a real socket."""

import asyncio
import contextlib
import dataclasses
import json
from collections.abc import AsyncIterator

import pytest
import structlog

from chunkmesh import side_door
from chunkmesh.address import HostPort, Listen
from chunkmesh.errors import ConfigError
from chunkmesh.side_door import Readiness

READY = Readiness(ready=True, state="serving")
LOADING = Readiness(ready=False, state="loading", reason="layers 8-9 missing", progress=0.5)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Answer:
    status: int
    content_type: str
    body: str


def _listen(port: int = 0, *, explicit: bool = True) -> Listen:
    return Listen(host="127.0.0.1", port=port, flag="--http-port", explicit=explicit)


async def _ask(address: HostPort, path: str, method: str = "GET") -> _Answer:
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(f"{method} {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n".encode())
    async with asyncio.timeout(10):
        head, _, body = (await reader.read()).decode().partition("\r\n\r\n")
    writer.close()
    await writer.wait_closed()
    first, *lines = head.splitlines()
    headers = dict(line.lower().split(": ", 1) for line in lines)
    return _Answer(
        status=int(first.split()[1]), content_type=headers.get("content-type", ""), body=body
    )


async def _answer(path: str, readiness: Readiness = READY, method: str = "GET") -> _Answer:
    application = side_door.app(lambda: readiness, lambda: {"layers": [0, 15]})
    async with side_door.listening(application, _listen()) as address:
        return await _ask(address, path, method)


async def test_live() -> None:
    """An answer says that the event loop turns, whatever the state."""
    assert (await _answer("/live", LOADING)).status == 200


@pytest.mark.parametrize(("readiness", "status"), [(READY, 200), (LOADING, 503)])
async def test_ready_tells_state_reason_and_progress(readiness: Readiness, status: int) -> None:
    """Probes read the status, people and the command line read the body."""
    answer = await _answer("/ready", readiness)
    assert (status, dataclasses.asdict(readiness)) == (answer.status, json.loads(answer.body))


async def test_server_info() -> None:
    """What the service says about itself, as JSON."""
    answer = await _answer("/server_info")
    assert (answer.status, json.loads(answer.body)) == (200, {"layers": [0, 15]})


async def test_metrics() -> None:
    """Prometheus can scrape, and finds the process at least."""
    answer = await _answer("/metrics")
    assert answer.status == 200
    assert answer.content_type.startswith("text/plain")
    assert "process_cpu_seconds_total" in answer.body


@pytest.mark.parametrize(
    ("method", "path", "status"), [("GET", "/", 404), ("GET", "/docs", 404), ("POST", "/live", 405)]
)
async def test_nothing_else_is_served(method: str, path: str, status: int) -> None:
    """The side door reads only, and has no hidden rooms."""
    assert (await _answer(path, method=method)).status == status


async def test_a_chosen_port_in_use_is_an_error() -> None:
    """The text names the port and the flag."""
    application = side_door.app(lambda: READY, dict)
    async with side_door.listening(application, _listen()) as taken:
        with pytest.raises(ConfigError, match=f"port {taken.port} is in use .* with --http-port"):
            async with side_door.listening(application, _listen(taken.port)):
                pass


async def test_a_default_port_in_use_moves_on() -> None:
    """A second service of one machine starts without flags, and says where it listens."""
    application = side_door.app(lambda: READY, dict)
    with structlog.testing.capture_logs() as logs:
        async with (
            side_door.listening(application, _listen()) as taken,
            side_door.listening(application, _listen(taken.port, explicit=False)) as moved,
        ):
            answer = await _ask(moved, "/live")
    assert answer.status == 200
    (line,) = [line for line in logs if line["event"] == "port moved"]
    assert (line["default"], line["port"]) == (taken.port, moved.port)


async def test_an_idle_connection_does_not_hold_up_the_stop() -> None:
    """Scrapers keep connections open."""
    application = side_door.app(lambda: READY, dict)
    async with asyncio.timeout(5):
        async with side_door.listening(application, _listen()) as address:
            _, writer = await asyncio.open_connection(address.host, address.port)
        writer.close()
        await writer.wait_closed()


async def test_an_error_inside_is_not_hidden() -> None:
    """What runs beside the side door raises its own error, not a group."""
    application = side_door.app(lambda: READY, dict)
    with pytest.raises(ConfigError, match="no model"):
        async with side_door.listening(application, _listen()):
            raise ConfigError("no model")


@contextlib.asynccontextmanager
async def _open_door() -> AsyncIterator[HostPort]:
    async with side_door.listening(side_door.app(lambda: READY, dict), _listen()) as address:
        yield address


async def _end_of(reader: asyncio.StreamReader) -> bytes:
    """Return what comes until the connection ends, which must be soon."""
    async with asyncio.timeout(5):
        try:
            return await reader.read()
        except ConnectionResetError:
            return b""


@pytest.mark.parametrize(
    "sent",
    [b"", b"GET /live HTTP/1.1\r\nHost:", b"POST /live HTTP/1.1\r\nContent-Length: 9\r\n\r\nx"],
    ids=["silent", "half a head", "half a body"],
)
async def test_who_is_slow_is_let_go(monkeypatch: pytest.MonkeyPatch, sent: bytes) -> None:
    """A door that waits for ever runs out of connections."""
    monkeypatch.setattr(side_door, "REQUEST_S", 0.2)
    async with _open_door() as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(sent)
        await _end_of(reader)
        writer.close()


async def test_who_never_ends_a_body_is_let_go(monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte now and then must not keep a connection alive, nor a body fill the memory."""
    monkeypatch.setattr(side_door, "REQUEST_S", 0.2)
    async with _open_door() as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        writer.write(b"POST /live HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n")
        ended = asyncio.create_task(_end_of(reader))
        while not ended.done():
            writer.write(b"1\r\nx\r\n")
            await asyncio.sleep(0.02)
        assert b" 405 " in await ended
        writer.close()


async def test_a_long_head_is_refused() -> None:
    """Nothing that is asked here needs 16 KiB."""
    async with _open_door() as address:
        reader, writer = await asyncio.open_connection(address.host, address.port)
        with contextlib.suppress(ConnectionError):
            writer.write(b"GET /live HTTP/1.1\r\nX: " + b"x" * (2 * side_door.MAX_HEAD_BYTES))
            await writer.drain()
        assert b"200" not in await _end_of(reader)
        writer.close()


async def test_who_holds_many_connections_keeps_nobody_out() -> None:
    """A probe that is not answered restarts the service."""
    async with _open_door() as address:
        held = [
            await asyncio.open_connection(address.host, address.port)
            for _ in range(side_door.MAX_CONNECTIONS + 8)
        ]
        assert (await _ask(address, "/live")).status == 200
        for reader, _ in held[:8]:
            assert await _end_of(reader) == b""
        for _, writer in held:
            writer.close()
