"""Channels to ChunkMesh servers. One channel a target, made once and closed by its owner."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TypeAlias

import grpc

from chunkmesh.address import HostPort
from chunkmesh.grpc_options import CLIENT_OPTIONS
from chunkmesh.trust.access import Role
from chunkmesh.trust.caller import bearing
from chunkmesh.trust.credentials import channel_credentials
from chunkmesh.trust.tls_files import TlsFiles, TlsPems

_RETIRE_S = 600.0
"""Time for the calls of a channel whose certificates were replaced."""
_Options: TypeAlias = tuple[tuple[str, int | str], ...]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """How a client proves who it is, and whom it takes for the server."""

    tls: TlsFiles | None = None
    """None is plain text."""
    server_role: Role | None = None
    """What the server's certificate must stand for; without, it must be that of the address."""
    metadata: tuple[tuple[str, str], ...] = dataclasses.field(default=(), repr=False)
    """What goes with every call: a bearer key, a tenant."""


PLAIN = Access()


def channel(address: HostPort, access: Access = PLAIN) -> grpc.aio.Channel:
    """Return a channel to address; it connects on first use, and again after a loss.

    Its certificates are those of now: whoever dials again makes a new channel. Metadata is left to
    the calls.
    """
    options = _options(access)
    if access.tls is None:
        return grpc.aio.insecure_channel(str(address), options=options)
    credentials = channel_credentials(access.tls.current())
    return grpc.aio.secure_channel(str(address), credentials, options=options)


def blocking_channel(address: HostPort, access: Access = PLAIN) -> grpc.Channel:
    """Return a channel for a program without an event loop; every call bears the metadata."""
    options = _options(access)
    if access.tls is None:
        made = grpc.insecure_channel(str(address), options=options)
    else:
        credentials = channel_credentials(access.tls.current())
        made = grpc.secure_channel(str(address), credentials, options=options)
    return bearing(made, access.metadata)


def raise_if_cancelled() -> None:
    """Raise asyncio.CancelledError if that is what this task was told.

    A stream of requests that is cancelled while it is being prepared swallows that, and ends as it
    would have: by the failure of the call, after which a loop would dial again for ever.
    """
    task = asyncio.current_task()
    if task is not None and task.cancelling():
        raise asyncio.CancelledError


class RenewedChannel:
    """A channel for as long as a service runs: new certificates bring a new one in its place."""

    def __init__(self, address: HostPort, access: Access) -> None:
        """Connect on first use."""
        self._address = address
        self._access = access
        self._pems = self._look()
        self._channel = channel(address, access)
        self._retired: set[asyncio.Task[None]] = set()

    def current(self) -> grpc.aio.Channel:
        """Return the channel for the next call; calls on the one before may end in peace."""
        pems = self._look()
        if pems is not self._pems:
            retired, self._channel = self._channel, channel(self._address, self._access)
            self._pems = pems
            task = asyncio.create_task(retired.close(_RETIRE_S))
            self._retired.add(task)
            task.add_done_callback(self._retired.discard)
        return self._channel

    async def close(self) -> None:
        """Close, without waiting for calls."""
        for task in self._retired:
            task.cancel()
        await asyncio.gather(*self._retired, return_exceptions=True)
        await self._channel.close()

    def _look(self) -> TlsPems | None:
        return None if self._access.tls is None else self._access.tls.current()


def _options(access: Access) -> _Options:
    if access.tls is None or access.server_role is None:
        return CLIENT_OPTIONS
    return (*CLIENT_OPTIONS, ("grpc.ssl_target_name_override", access.server_role.certificate_name))
