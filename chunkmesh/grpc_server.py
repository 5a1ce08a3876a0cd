"""The chassis of every gRPC server: options, port, TLS, guard, health, reflection, errors, stop.

A service makes one, adds its servicers to .server, and runs it:

    chassis = GrpcServer("chunkmesh.v1.Generation", guard=guard)
    generation_pb2_grpc.add_GenerationServicer_to_server(servicer, chassis.server)
    async with chassis.listening(Listen(host=host, port=port, flag="--port", explicit=False)):
        chassis.set_serving(serving=True)
        await stop.wait()
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import grpc
import structlog
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection

from chunkmesh.address import HostPort, Listen
from chunkmesh.errors import ConfigError
from chunkmesh.grpc_options import MAX_CALLS, SERVER_OPTIONS
from chunkmesh.health import HealthServicer
from chunkmesh.ports import free_address
from chunkmesh.rpc_errors import ErrorInterceptor
from chunkmesh.trust.access import Door
from chunkmesh.trust.credentials import server_credentials
from chunkmesh.trust.guard import Guard
from chunkmesh.trust.interceptor import GuardInterceptor

_HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name

_REMEDIES = dict.fromkeys(
    Door, "--ssl-certfile, --ssl-keyfile and --ssl-ca-certs on all services; see docs/security.md"
) | {Door.USERS: "--api-key-file or --ssl-client-ca; see docs/security.md"}

_log = structlog.get_logger(__name__)


class GrpcServer:
    """Owns one grpc.aio server and the statuses that its health service tells."""

    server: grpc.aio.Server
    """Takes servicers until listening."""

    def __init__(
        self,
        *service_names: str,
        guard: Guard | None = None,
        max_connections: int | None = None,
    ) -> None:
        """Name the services that will be added, with their package, for reflection and health.

        Without a guard everybody is let in, in plain text. Connections beyond max_connections are
        closed at once.
        """
        options = [*SERVER_OPTIONS]
        if max_connections is not None:
            options.append(("grpc.max_allowed_incoming_connections", max_connections))
        interceptors: list[grpc.aio.ServerInterceptor] = [ErrorInterceptor()]
        if guard is not None:
            interceptors.append(GuardInterceptor(guard))
        self.server = grpc.aio.server(
            interceptors=interceptors, options=options, maximum_concurrent_rpcs=MAX_CALLS
        )
        self._guard = guard
        self._names = service_names
        self._health = HealthServicer(service_names)
        health_pb2_grpc.add_HealthServicer_to_server(self._health, self.server)
        reflection.enable_server_reflection(
            (*service_names, _HEALTH, reflection.SERVICE_NAME), self.server
        )

    def set_serving(self, serving: bool) -> None:
        """Tell health checks; a server starts as NOT_SERVING."""
        self._health.set_serving(serving)

    @contextlib.asynccontextmanager
    async def listening(self, listen: Listen, *, grace_s: float = 5.0) -> AsyncIterator[HostPort]:
        """Serve while inside and yield the address really taken.

        On leaving, health turns NOT_SERVING and running RPCs get grace_s to end.

        Raises:
            ConfigError: a chosen port is in use, or the address cannot be bound; names both.
        """
        address = free_address(listen)
        try:
            self._bind(address)
        except RuntimeError as error:
            raise ConfigError(f"cannot listen on {address} ({listen.flag})") from error
        await self.server.start()
        _log.info("grpc listening", address=str(address), services=self._names)
        self._warn_of_strangers(address)
        try:
            yield address
        finally:
            self._health.close()
            await self.server.stop(grace_s)

    def _bind(self, address: HostPort) -> None:
        """Take the port. Raises RuntimeError if that fails."""
        if self._guard is None or self._guard.tls is None:
            self.server.add_insecure_port(str(address))
        else:
            self.server.add_secure_port(str(address), server_credentials(self._guard.tls))

    def _warn_of_strangers(self, address: HostPort) -> None:
        """Tell who can reach a port that is not of this machine alone."""
        if address.is_loopback:
            return
        if self._guard is None or self._guard.tls is None:
            _log.warning(
                "PORT WITHOUT TLS: whoever reaches it can read along and pretend to be others",
                address=str(address),
                remedy="--ssl-certfile, --ssl-keyfile and --ssl-ca-certs; see docs/security.md",
            )
        if self._guard is not None and not self._guard.knows_users:
            _log.warning(
                "OPEN PORT: whoever reaches it may do everything",
                address=str(address),
                remedy=_REMEDIES[self._guard.door],
            )
