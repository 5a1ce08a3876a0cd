"""The HTTP server: uvicorn with bounds on connections, on idle ones, and on heads of requests."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, cast

import structlog
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from chunkmesh.address import HostPort, Listen
from chunkmesh.gateway.api_error import invalid
from chunkmesh.gateway.metrics import CONNECTIONS
from chunkmesh.gateway.wire import ABORT, as_bytes
from chunkmesh.ports import bind
from chunkmesh.side_door import SignallessServer

IDLE_S = 75.0
"""A connection without a request under way is kept so long: longer than clients keep theirs."""
MAX_HEAD_BYTES = 32 << 10
"""Of a request's first line and headers."""
_SHUTDOWN_S = 2

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpOptions:
    """How to serve."""

    max_connections: int
    certfile: Path | None = None
    """None is plain HTTP."""
    keyfile: Path | None = None


class _Protocol(H11Protocol):
    """Ends what is too much or too slow, and refuses what is no HTTP in the API's form."""

    def __init__(self, *args: Any, max_connections: int, **options: Any) -> None:  # noqa: ANN401
        super().__init__(*args, **options)
        self._max_connections = max_connections

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for a request."""
        self._since_s = self.loop.time()
        self._look = self.loop.call_later(IDLE_S, self._end_if_idle)
        self.app_state = {**self.app_state, ABORT: transport.abort}
        super().connection_made(transport)
        CONNECTIONS.inc()
        if len(self.connections) > self._max_connections:
            transport.abort()

    def on_response_complete(self) -> None:
        """Begin to wait for the next request."""
        self._since_s = self.loop.time()
        super().on_response_complete()

    def connection_lost(self, exc: Exception | None) -> None:
        """Wait no longer."""
        CONNECTIONS.dec()
        self._look.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Refuse what is no HTTP, and end the connection."""
        body = as_bytes(invalid(msg, None).body())
        head = (
            "HTTP/1.1 400 Bad Request\r\ncontent-type: application/json\r\n"
            f"content-length: {len(body)}\r\nconnection: close\r\n\r\n"
        )
        self.transport.write(head.encode() + body)
        self.transport.close()

    def _end_if_idle(self) -> None:
        is_busy = self.cycle is not None and not self.cycle.response_complete
        since_s = self.loop.time() if is_busy else self._since_s
        left_s = since_s + IDLE_S - self.loop.time()
        if left_s <= 0:
            self.transport.abort()
        else:
            self._look = self.loop.call_later(left_s, self._end_if_idle)


@contextlib.asynccontextmanager
async def listening(
    application: ASGIApp, listen: Listen, options: HttpOptions
) -> AsyncIterator[HostPort]:
    """Serve an application while inside and yield the address really taken.

    Raises:
        ConfigError: a chosen port is in use, or the address cannot be bound; names both.
    """
    with bind(listen) as bound:
        address = HostPort(host=listen.host, port=bound.getsockname()[1])
        protocol = functools.partial(_Protocol, max_connections=options.max_connections)
        server = SignallessServer(
            uvicorn.Config(
                cast("Any", application),
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                http=cast("type[asyncio.Protocol]", protocol),
                ws="none",
                h11_max_incomplete_event_size=MAX_HEAD_BYTES,
                timeout_keep_alive=round(IDLE_S),
                timeout_graceful_shutdown=_SHUTDOWN_S,
                ssl_certfile=options.certfile,
                ssl_keyfile=options.keyfile,
            )
        )
        serving = asyncio.create_task(server.serve(sockets=[bound]))
        scheme = "http" if options.certfile is None else "https"
        _log.info("http listening", url=f"{scheme}://{address}")
        try:
            yield address
        finally:
            server.should_exit = True
            await serving
