"""Where a server listens or is dialled: HOST:PORT as a value. Pure."""

from __future__ import annotations

import dataclasses
import ipaddress
from typing import Self

from chunkmesh.errors import ConfigError

LOOPBACK = "127.0.0.1"
EVERY_NETWORK = ("0.0.0.0", "::")
"""Hosts to listen on that nobody can dial."""
_MAX_PORT = 65535


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HostPort:
    """An address; an IPv6 host is kept without its brackets."""

    host: str
    """Name or number of a host, not empty."""
    port: int
    """0 <= port <= 65535; 0 lets the system choose when listening."""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read host:port, [ipv6]:port or :port, which means loopback.

        Raises:
            ConfigError: the text is none of these; names it.
        """
        scheme, separator, _ = text.strip().partition("://")
        if separator:
            raise ConfigError(f"{text!r}: leave out {scheme}://, write HOST:PORT only")
        host, colon, port = text.strip().rpartition(":")
        if not colon or not (port.isascii() and port.isdigit()):
            raise ConfigError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:50051")
        if int(port) > _MAX_PORT:
            raise ConfigError(f"{text!r}: port {port} is over {_MAX_PORT}")
        if host.startswith("[") and host.endswith("]"):
            host = host[1:-1]
        elif ":" in host:
            raise ConfigError(f"{text!r}: write an IPv6 host in brackets, such as [::1]:50051")
        if any(character in "[]/@" or character.isspace() for character in host):
            raise ConfigError(f"{text!r} is not HOST:PORT, such as 127.0.0.1:50051")
        return cls(host=host or LOOPBACK, port=int(port))

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it; a name of another host never counts as such."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Listen:
    """Where to listen, and what to do when the port is taken."""

    host: str
    port: int
    """0 <= port <= 65535; 0 lets the system choose."""
    flag: str
    """Flag that sets the port, for the error text, such as --port."""
    explicit: bool
    """The user chose this port: in use is an error. Otherwise the next free one is taken."""
