"""Reads files that nobody else should see: keys of users, passwords, secrets of page keys."""

from __future__ import annotations

import stat
from pathlib import Path

import structlog

from chunkmesh.errors import ConfigError, reason_of

_log = structlog.get_logger(__name__)
_OTHERS_READ = stat.S_IROTH | stat.S_IRGRP
_OTHERS_WRITE = stat.S_IWOTH | stat.S_IWGRP


def read_secret_file(path: Path, *, name: str, max_bytes: int) -> bytes:
    """Read a whole file; name is what errors call it.

    That group or others may read it is only warned of, for secrets that Kubernetes mounts are so
    by default. Whoever may write it could let himself in.

    Raises:
        ConfigError: it cannot be read, is too long, or group or others may write it.
    """
    content = _read(path, name=name, max_bytes=max_bytes)
    check_private(path, name=name)
    return content


def check_private(path: Path, *, name: str) -> None:
    """Warn of a secret file that others can read.

    Raises:
        ConfigError: they can write it, or it is away.
    """
    try:
        mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{name}: {reason_of(error)}") from error
    if mode & _OTHERS_WRITE:
        raise ConfigError(
            f"{name}: group or others can write it (mode {mode & 0o777:o}): chmod 600"
        )
    if mode & _OTHERS_READ:
        _log.warning("others can read a secret file", path=str(path), mode=f"{mode & 0o777:o}")


def _read(path: Path, *, name: str, max_bytes: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(max_bytes + 1)
    except OSError as error:
        raise ConfigError(f"{name}: {reason_of(error)}") from error
    if len(content) > max_bytes:
        raise ConfigError(f"{name}: more than {max_bytes} bytes")
    return content
