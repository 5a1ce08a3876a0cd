"""Around all routes: an id for each request, its log line and its metrics, and no answer of bugs.

Nothing here looks at a body or at a key.
"""

from __future__ import annotations

import secrets
import time
import traceback
from typing import Any

import structlog
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from chunkmesh.gateway.api_error import CLIENT_GONE, bug
from chunkmesh.gateway.metrics import FIRST_BYTE_SECONDS, IN_FLIGHT, REQUESTS, SECONDS
from chunkmesh.gateway.wire import as_bytes

REQUEST_ID = "chunkmesh.request_id"
NOTES = "chunkmesh.notes"
"""Keys of a scope: the request's id, and what its log line tells beside the usual."""
OTHER_ROUTE = "other"
_QUIET_ROUTES = {"/health", "/live", "/ready", "/metrics"}
"""Probes come every few seconds; their lines would drown the others."""
_log = structlog.get_logger(__name__)


class Observed:
    """An ASGI application around another."""

    def __init__(self, app: ASGIApp, routes: frozenset[str]) -> None:
        """Metrics are by these paths; a path below one counts as that, all else as other."""
        self._app = app
        self._routes = sorted(routes, key=len, reverse=True)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            return
        seen = _Seen(send)
        scope[REQUEST_ID], scope[NOTES] = seen.request_id, seen.notes
        route = self._route_of(scope["path"])
        with IN_FLIGHT.labels(route).track_inprogress():
            try:
                await self._app(scope, receive, seen.send)
            except Exception as error:  # noqa: BLE001 - every request ends with an answer
                _log_bug(error, route)
                seen.notes["error_status"] = 500
                if seen.status is None:
                    await _answer_bug(seen.send)
            finally:
                seen.ended(route)

    def _route_of(self, path: str) -> str:
        for route in self._routes:
            if path == route or path.startswith(f"{route}/"):
                return route
        return OTHER_ROUTE


class _Seen:
    """What is seen of one request."""

    def __init__(self, send: Send) -> None:
        self.request_id = secrets.token_hex(16)
        self.notes: dict[str, Any] = {}
        self.status: int | None = None
        self._send = send
        self._begin_s = time.monotonic()
        self._first_byte_s: float | None = None
        self._is_whole = False

    async def send(self, message: Message) -> None:
        """Send, and take note."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            self._first_byte_s = time.monotonic() - self._begin_s
            named = (b"x-request-id", self.request_id.encode())
            message = {**message, "headers": [*message["headers"], named]}
        elif not message.get("more_body", False):
            self._is_whole = True
        await self._send(message)

    def ended(self, route: str) -> None:
        """Tell of the request."""
        gone = self.notes.pop("gone", False) or not self._is_whole
        status = CLIENT_GONE if gone or self.status is None else self.status
        # A stream that has begun with 200 may end with an error all the same.
        status = self.notes.pop("error_status", status)
        seconds = time.monotonic() - self._begin_s
        REQUESTS.labels(route, str(status)).inc()
        SECONDS.labels(route).observe(seconds)
        if self._first_byte_s is not None:
            FIRST_BYTE_SECONDS.labels(route).observe(self._first_byte_s)
        if route in _QUIET_ROUTES:
            return
        first_ms = None if self._first_byte_s is None else round(1000 * self._first_byte_s, 1)
        _log.info(
            "request ended",
            request_id=self.request_id,
            route=route,
            status=status,
            first_byte_ms=first_ms,
            total_ms=round(1000 * seconds, 1),
            **self.notes,
        )


def _log_bug(error: Exception, route: str) -> None:
    """Log type and place only: the text may quote a prompt."""
    stack = traceback.format_list(traceback.extract_tb(error.__traceback__))
    _log.error("request failed", route=route, error=type(error).__name__, stack="".join(stack))


async def _answer_bug(send: Send) -> None:
    body = as_bytes(bug().body())
    headers = [
        (b"content-type", b"application/json"),
        (b"content-length", str(len(body)).encode()),
    ]
    await send({"type": "http.response.start", "status": 500, "headers": headers})
    await send({"type": "http.response.body", "body": body})
