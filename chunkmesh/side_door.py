"""The HTTP side door of every service: /live, /ready, /metrics and /server_info.

Runs in the service's own event loop, so that an answer from /live says that the loop turns.
Reads only; it decides nothing and has no secrets to keep, so that it has no TLS either.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Iterator, Mapping

import prometheus_client
import structlog
import uvicorn
from pydantic import JsonValue
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from chunkmesh.address import HostPort, Listen
from chunkmesh.ports import bind

MAX_CONNECTIONS = 64
"""At a time; one more ends the one that has waited longest, so that probes come through."""
MAX_HEAD_BYTES = 16 << 10
"""Of a request's first line and headers."""
REQUEST_S = 5.0
"""From the begin of a connection, or from its last answer, to the next answer."""
_SHUTDOWN_S = 1

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Readiness:
    """What /ready answers."""

    ready: bool
    state: str
    """One word, such as loading, waiting, serving or draining."""
    reason: str = ""
    """Why it is not ready."""
    progress: float | None = None
    """Of loading or warm-up, 0 <= progress <= 1; None where there is nothing to measure."""


def app(
    readiness: Callable[[], Readiness], info: Callable[[], Mapping[str, JsonValue]]
) -> Starlette:
    """Return the ASGI application; both callables are asked on every request and must not block."""

    async def live(_request: Request) -> Response:
        return JSONResponse({"live": True})

    async def ready(_request: Request) -> Response:
        now = readiness()
        return JSONResponse(dataclasses.asdict(now), status_code=200 if now.ready else 503)

    async def metrics(_request: Request) -> Response:
        content = prometheus_client.generate_latest()
        return Response(content, media_type=prometheus_client.CONTENT_TYPE_LATEST)

    async def server_info(_request: Request) -> Response:
        return JSONResponse(dict(info()))

    routes = [
        Route("/live", live),
        Route("/ready", ready),
        Route("/metrics", metrics),
        Route("/server_info", server_info),
    ]
    return Starlette(routes=routes)


class _Protocol(H11Protocol):
    """Ends connections whose request does not come, or whose answer is not taken, in time."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait; where there are too many, the one that has waited longest ends."""
        self._since_s = self.loop.time()
        self._look = self.loop.call_later(REQUEST_S, self._end_if_slow)
        super().connection_made(transport)
        others = [each for each in self.connections if isinstance(each, _Protocol)]
        if len(others) > MAX_CONNECTIONS:
            min(others, key=lambda each: each._since_s).transport.abort()  # noqa: SLF001 - of its own

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._since_s = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        self._look.cancel()
        super().connection_lost(exc)

    def _end_if_slow(self) -> None:
        left_s = self._since_s + REQUEST_S - self.loop.time()
        if left_s <= 0:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(left_s, self._end_if_slow)


class SignallessServer(uvicorn.Server):
    """Leaves signals to the service."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


@contextlib.asynccontextmanager
async def listening(application: Starlette, listen: Listen) -> AsyncIterator[HostPort]:
    """Serve an application while inside and yield the address really taken.

    Raises:
        ConfigError: a chosen port is in use, or the address cannot be bound; names both.
    """
    with bind(listen) as bound:
        address = HostPort(host=listen.host, port=bound.getsockname()[1])
        server = SignallessServer(
            uvicorn.Config(
                application,
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                http=_Protocol,
                ws="none",
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                timeout_graceful_shutdown=_SHUTDOWN_S,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        _log.info("http listening", address=str(address))
        try:
            yield address
        finally:
            server.should_exit = True
            await serving
