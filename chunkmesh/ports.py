"""Binds listening sockets. A default port in use moves on, a chosen one is an error.

Used by the gRPC servers and the HTTP side door.
"""

from __future__ import annotations

import contextlib
import errno
import secrets
import socket

import structlog

from chunkmesh.address import HostPort, Listen
from chunkmesh.errors import ConfigError

_MAX_MOVES = 100
_BACKLOG = 128
_FIRST_UNUSED = 20000
_EPHEMERAL = 32768
"""First port that Linux gives to outgoing connections, unless told otherwise."""

_log = structlog.get_logger(__name__)


def bind(listen: Listen) -> socket.socket:
    """Return a listening socket, which the caller owns.

    Raises:
        ConfigError: a chosen port is in use, or the address cannot be bound; names both.
    """
    for port in range(listen.port, min(listen.port + _MAX_MOVES, 65536)):
        try:
            bound = _listen(listen.host, port)
        except OSError as error:
            address = HostPort(host=listen.host, port=port)
            if error.errno != errno.EADDRINUSE:
                reason = error.strerror or str(error)
                raise ConfigError(f"cannot listen on {address}: {reason}") from error
            if listen.explicit:
                raise ConfigError(
                    f"port {port} is in use on {listen.host}: choose another with {listen.flag}"
                ) from error
        else:
            if port != listen.port:
                _log.warning("port moved", flag=listen.flag, default=listen.port, port=port)
            return bound
    raise ConfigError(
        f"no free port from {listen.port} on {listen.host}: choose one with {listen.flag}"
    )


def bind_unused(host: str) -> socket.socket:
    """Return a socket that listens on a port for a process that will bind it later itself.

    The port lies below those that the system gives to outgoing connections, so that none of them
    takes it in between.

    Raises:
        ConfigError: the host cannot be bound.
    """
    for _ in range(_MAX_MOVES):
        port = _FIRST_UNUSED + secrets.randbelow(_EPHEMERAL - _FIRST_UNUSED)
        with contextlib.suppress(ConfigError):
            return bind(Listen(host=host, port=port, flag="", explicit=True))
    return bind(Listen(host=host, port=0, flag="", explicit=True))


def free_address(listen: Listen) -> HostPort:
    """Return the address that bind would take, for servers that must bind themselves.

    Raises:
        ConfigError: as bind.
    """
    with bind(listen) as bound:
        return HostPort(host=listen.host, port=bound.getsockname()[1])


def _listen(host: str, port: int) -> socket.socket:
    family, kind, protocol, _, address = socket.getaddrinfo(
        host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    bound = socket.socket(family, kind, protocol)
    try:
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
        bound.listen(_BACKLOG)
    except OSError:
        bound.close()
        raise
    bound.setblocking(False)  # noqa: FBT003 - the parameter is positional only
    return bound
