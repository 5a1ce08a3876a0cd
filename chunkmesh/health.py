"""grpc.health.v1: tells the truth about readiness, to Check and to Watch.

Starts as NOT_SERVING. Unlike grpcio's own servicer, setting a status never waits for a slow
watcher, and watchers are let go at shutdown instead of holding it up.
Source: https://github.com/grpc/grpc/blob/master/doc/health-checking.md
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import TypeAlias

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

_Response = health_pb2.HealthCheckResponse
_Context: TypeAlias = "grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, _Response]"


class HealthServicer(health_pb2_grpc.HealthServicer):
    """Owns the serving status, one for the whole server ("") and all of its services."""

    def __init__(self, service_names: Iterable[str]) -> None:
        self._names = frozenset(("", *service_names))
        self._serving = False
        self._changed = asyncio.Event()
        self._closed = False

    def set_serving(self, serving: bool) -> None:
        """Set the status of the server and of all its services; no effect after close."""
        if not self._closed:
            self._serving = serving
            self._notify()

    def close(self) -> None:
        """Become NOT_SERVING for good, and end all watches once they have heard it."""
        self.set_serving(serving=False)
        self._closed = True
        self._notify()

    async def Check(
        self, request: health_pb2.HealthCheckRequest, context: _Context
    ) -> health_pb2.HealthCheckResponse:
        """Answer the status of a service; an unknown name is NOT_FOUND."""
        if request.service not in self._names:
            await context.abort(grpc.StatusCode.NOT_FOUND, f"no service {request.service!r}")
        return self._answer()

    async def Watch(
        self, request: health_pb2.HealthCheckRequest, _context: _Context
    ) -> AsyncIterator[health_pb2.HealthCheckResponse]:
        """Send the status of a service now and whenever it changes."""
        known = request.service in self._names
        last: health_pb2.HealthCheckResponse | None = None
        while True:
            changed, closed = self._changed, self._closed
            answer = self._answer() if known else _Response(status=_Response.SERVICE_UNKNOWN)
            if answer != last:
                yield answer
                last = answer
            if closed:
                return
            await changed.wait()

    def _answer(self) -> health_pb2.HealthCheckResponse:
        return _Response(status=_Response.SERVING if self._serving else _Response.NOT_SERVING)

    def _notify(self) -> None:
        changed, self._changed = self._changed, asyncio.Event()
        changed.set()
