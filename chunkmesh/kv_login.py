"""How to get into Redis or Valkey: an ACL user, a password from a file, authorities for TLS.

What URLs say themselves (redis://USER:PASSWORD@HOST) holds where this says nothing.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Protocol

from chunkmesh.errors import ConfigError
from chunkmesh.trust.secret_file import read_secret_file
from chunkmesh.trust.watched_files import WatchedFiles

_MAX_PASSWORD_BYTES = 4096


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class KvLogin:
    """How clients get into each server of a page store."""

    username: str = ""
    password: WatchedFiles[str] | None = None
    """Asked at every connection, so that a new one needs no restart."""
    ca_certs: Path | None = None
    """Authorities of rediss:// servers; the system's if None. Read at every connection."""


NO_LOGIN = KvLogin()


class LoginSettings(Protocol):
    """What services are told about it, by the names of their flags."""

    @property
    def redis_username(self) -> str:
        """Name of the ACL user; empty for the default one."""
        ...

    @property
    def redis_password_file(self) -> Path | None:
        """File of its password."""
        ...

    @property
    def redis_ca_certs(self) -> Path | None:
        """Authorities of servers with TLS."""
        ...


def login_of(settings: LoginSettings) -> KvLogin:
    """Read the files that a service was told of; raises as kv_login does."""
    return kv_login(
        username=settings.redis_username,
        password_file=settings.redis_password_file,
        ca_certs=settings.redis_ca_certs,
    )


def kv_login(*, username: str, password_file: Path | None, ca_certs: Path | None) -> KvLogin:
    """Read the files.

    Raises:
        ConfigError: one cannot be read, or there is a name without a password.
    """
    if username and password_file is None:
        raise ConfigError(f"--redis-username {username} needs --redis-password-file")
    if ca_certs is not None and not ca_certs.is_file():
        raise ConfigError(f"--redis-ca-certs {ca_certs}: no such file")
    password = None
    if password_file is not None:
        password = WatchedFiles(
            (password_file,), lambda: _read_password(password_file), name="redis-password"
        )
    return KvLogin(username=username, password=password, ca_certs=ca_certs)


def _read_password(path: Path) -> str:
    name = f"--redis-password-file {path}"
    content = read_secret_file(path, name=name, max_bytes=_MAX_PASSWORD_BYTES)
    try:
        password = content.decode().rstrip("\r\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"{name}: not UTF-8") from error
    if not password:
        raise ConfigError(f"{name}: empty")
    return password
