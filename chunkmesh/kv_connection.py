"""One connection to a Redis or Valkey server: the one module that talks through redis-py.

Blocking, for one thread at a time. A command that fails or times out takes the connection with it,
so its reply can never be read as the answer to the next one. The next call connects anew.
"""

from __future__ import annotations

import contextlib
import socket
import urllib.parse
from collections.abc import Iterator, Sequence
from typing import Protocol, TypeVar, cast

from redis.backoff import NoBackoff
from redis.connection import ConnectionPool
from redis.credentials import CredentialProvider
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisError,
    ResponseError,
    TryAgainError,
)
from redis.retry import Retry

from chunkmesh.errors import CacheFault, ConfigError
from chunkmesh.hidden import without_passwords
from chunkmesh.kv_login import NO_LOGIN, KvLogin
from chunkmesh.kv_wire import Command, Refused, ValueReader, pack, send_parts
from chunkmesh.trust.watched_files import WatchedFiles

_READ_BYTES = 1 << 20
_ELSEWHERE = (MovedError, AskError, TryAgainError, ClusterDownError)
"""How a cluster says that a key is not, or not yet, on the server that was asked."""

_T = TypeVar("_T")


class _Connection(Protocol):
    """The part of redis-py's connections in use; they carry no types."""

    def connect(self) -> None: ...

    def _get_socket(self) -> socket.socket: ...

    def read_response(self) -> object: ...

    def can_read(self, timeout: float) -> bool: ...

    def disconnect(self) -> None: ...


class _Credentials(CredentialProvider):
    """Asks for the password at every connection."""

    def __init__(self, username: str, password: WatchedFiles[str]) -> None:
        self._username = username
        self._password = password

    def get_credentials(self) -> tuple[str] | tuple[str, str]:
        """Return what AUTH is called with."""
        password = self._password.current()
        return (self._username, password) if self._username else (password,)


def _login_options(url: urllib.parse.SplitResult, login: KvLogin) -> dict[str, object]:
    """Return what redis-py takes beside the URL.

    Raises:
        ValueError: the password is said twice.
    """
    options: dict[str, object] = {}
    if login.password is not None:
        if url.password is not None or url.username:
            raise ValueError("name and password stand in --redis-password-file's place, not here")
        options["credential_provider"] = _Credentials(login.username, login.password)
    if url.scheme == "rediss" and login.ca_certs is not None:
        options["ssl_ca_certs"] = str(login.ca_certs)
    return options


class KvConnection:
    """Owner of one connection."""

    def __init__(self, url: str, *, timeout_s: float, login: KvLogin = NO_LOGIN) -> None:
        """Take redis://, rediss:// or unix:// without connecting.

        timeout_s bounds connecting and every send or receive; login is for this server and those
        beside it.

        Raises:
            ConfigError: the URL is none of these.
        """
        try:
            self._url = urllib.parse.urlsplit(url)
        except ValueError:  # its text may repeat a password
            raise ConfigError("--redis-url: no URL, such as redis://[::1]:6379") from None
        try:
            pool = ConnectionPool.from_url(
                url,
                socket_timeout=timeout_s,
                socket_connect_timeout=timeout_s,
                socket_read_size=_READ_BYTES,
                retry=Retry(NoBackoff(), 0),
                protocol=2,
                **_login_options(self._url, login),
            )
            self._connection = cast("_Connection", pool.make_connection())
        except (ValueError, TypeError) as error:
            shown = self._url._replace(netloc=self._url.netloc.rpartition("@")[2]).geturl()
            raise ConfigError(f"--redis-url {without_passwords(shown)}: {error}") from error
        self._timeout_s = timeout_s
        self._login = login
        self._connected = False
        """Whether an exchange has ended well on this connection."""
        self._values: ValueReader | None = None
        """Of this exchange, once it has read values; then it reads nothing else."""

    @property
    def name(self) -> str:
        """Address, without password."""
        return self._url.path if self._url.scheme == "unix" else self._url.netloc.rpartition("@")[2]

    def beside(self, host: str, port: int) -> KvConnection:
        """Return a connection to another server of the same cluster; no host means this one's.

        Raises:
            CacheFault: this one goes to a Unix socket, from where the others cannot be reached.
        """
        if self._url.scheme == "unix":
            raise CacheFault(f"Redis {self.name} is one of a cluster: give redis://HOST:PORT")
        login, at, _ = self._url.netloc.rpartition("@")
        host = host or self._url.hostname or ""
        address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        url = self._url._replace(netloc=f"{login}{at}{address}")
        return KvConnection(url.geturl(), timeout_s=self._timeout_s, login=self._login)

    def close(self) -> None:
        """Close the connection."""
        self._connection.disconnect()

    @contextlib.contextmanager
    def exchange(self) -> Iterator[None]:
        """Send and read inside; the connection is dropped unless every reply has been read.

        Raises:
            CacheFault: the server does not answer, or refuses.
        """
        self._connected = False
        self._values = None
        try:
            yield
            self._check_end()
        except (RedisError, OSError) as error:
            self._connection.disconnect()
            raise CacheFault(f"Redis {self.name}: {error}") from error
        except BaseException:
            self._connection.disconnect()
            raise
        self._connected = True

    def send(self, commands: Sequence[Command]) -> None:
        """Send commands; each has a reply to be read."""
        self._connection.connect()
        send_parts(self._socket(), pack(commands))

    def read_values(self, rooms: Sequence[Sequence[memoryview]]) -> list[int | None]:
        """Read a reply of one value for each room into it, as ValueReader.read does.

        A key of another type is as good as none.
        """
        if self._values is None:
            self._values = ValueReader(self._socket())
        reply = self._values.read(rooms)
        if not isinstance(reply, Refused):
            return reply
        self._check(reply)
        return [None] * len(rooms)

    def reply(self) -> object:
        """Read a reply; a refusal comes as Refused.

        Raises:
            CacheFault: the key is on another server of the cluster.
        """
        assert self._values is None, "what follows the values may be in their buffer"
        try:
            return self._connection.read_response()
        except _ELSEWHERE as error:
            text = f"Redis {self.name}: {type(error).__name__}: {error}"
            raise CacheFault(text) from error
        except ResponseError as error:
            return Refused(str(error))

    def value(self) -> object:
        """Read a reply; a key of another type is as good as none."""
        reply = self.reply()
        if isinstance(reply, Refused):
            self._check(reply)
            return None
        return reply

    def call(self, command: Command, kind: type[_T]) -> _T:
        """Send a command and read its reply, which must be of this kind."""
        self.send([command])
        reply = self.reply()
        if isinstance(reply, Refused):
            raise CacheFault(f"Redis {self.name}: {reply.text}")
        if not isinstance(reply, kind):
            said = f"{bytes(command[0]).decode()} was answered by {type(reply).__name__}"
            raise CacheFault(f"Redis {self.name}: {said}")
        return reply

    def is_stale(self) -> bool:
        """Whether the server closed the idle connection, or something on it was never read."""
        try:
            return self._connected and self._connection.can_read(0)
        except (RedisError, OSError):
            return True

    def _check_end(self) -> None:
        """Raise a CacheFault if the server said more than it was asked."""
        if self._values is not None and not self._values.is_done:
            raise CacheFault(f"Redis {self.name}: more was answered than asked")

    def _check(self, refused: Refused) -> None:
        """Raise a CacheFault, unless a key was only of another type."""
        if not refused.text.startswith("WRONGTYPE"):
            raise CacheFault(f"Redis {self.name}: {refused.text}")

    def _socket(self) -> socket.socket:
        return self._connection._get_socket()  # noqa: SLF001 - redis-py shows it nowhere else
