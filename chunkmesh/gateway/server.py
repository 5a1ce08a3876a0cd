"""Puts a gateway together, and takes it down in order."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

import structlog

from chunkmesh.address import HostPort
from chunkmesh.gateway.app import app
from chunkmesh.gateway.exchange import Gateway, Limits
from chunkmesh.gateway.http_server import HttpOptions, listening
from chunkmesh.gateway.mesh_client import MeshClient
from chunkmesh.gateway.open_requests import OpenRequests
from chunkmesh.gateway.served_model import ServedModel
from chunkmesh.gateway.settings import GatewaySettings
from chunkmesh.grpc_client import Access
from chunkmesh.retrying import Servers
from chunkmesh.trust.tls_files import TlsPaths, tls_files

_log = structlog.get_logger(__name__)


async def serve(settings: GatewaySettings, stop: asyncio.Event) -> None:
    """Run a gateway until stop is set."""
    async with running(settings):
        await stop.wait()


@contextlib.asynccontextmanager
async def running(settings: GatewaySettings) -> AsyncIterator[HostPort]:
    """Run a gateway while inside; on leaving, open requests get drain_timeout to end.

    Raises:
        ConfigError: a file or an address does not do.
    """
    access = Access(tls=settings.scheduler_tls())
    if access.tls is None and not all(server.is_loopback for server in settings.server):
        servers = [str(server) for server in settings.server]
        _log.warning("clients' keys go to the scheduler in plain text", servers=servers)
    client = MeshClient(Servers(settings.server, retry_for_s=settings.retry_for_s, access=access))
    open_requests = OpenRequests(
        max_requests=settings.max_requests, max_body_bytes=settings.max_body_bytes
    )
    gateway = Gateway(
        client=client,
        model=ServedModel(client),
        open_requests=open_requests,
        limits=Limits(
            request_timeout_s=settings.request_timeout or None,
            unread_timeout_s=settings.unread_timeout,
        ),
    )
    options = _http_options(settings)
    async with contextlib.AsyncExitStack() as stack:
        stack.push_async_callback(client.close)
        address = await stack.enter_async_context(
            listening(app(gateway), settings.listen("port"), options)
        )
        yield address
        if num_left := await open_requests.drain(settings.drain_timeout):
            _log.warning("requests cut off by shutdown", num_requests=num_left)


def _http_options(settings: GatewaySettings) -> HttpOptions:
    """Look at the HTTP port's certificate before it is used.

    Raises:
        ConfigError: it does not do.
    """
    certfile, keyfile = settings.users_ssl_certfile, settings.users_ssl_keyfile
    if certfile is not None:
        flags = ("--users-ssl-certfile", "--users-ssl-keyfile", "")
        tls_files(TlsPaths(certfile=certfile, keyfile=keyfile, flags=flags), name="users")
    return HttpOptions(max_connections=settings.max_connections, certfile=certfile, keyfile=keyfile)
