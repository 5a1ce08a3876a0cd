"""Reads the secret that page keys are made with, once at the start of a scheduler.

It stays in this process: hicache-server, workers and Redis see digests only.
"""

from __future__ import annotations

import stat
from pathlib import Path

import structlog

from chunkmesh.errors import ConfigError, reason_of

_log = structlog.get_logger(__name__)
_MIN_BYTES = 16
_MAX_BYTES = 4096


def read_cache_secret(path: Path, *, name: str) -> bytes:
    """Read a file of 16 to 4096 bytes; a line's end behind them does not count.

    name is what errors call it. That others may read the file is only warned of: secrets that
    Kubernetes mounts are so by default.

    Raises:
        ConfigError: it cannot be read, or it is too short or too long.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
            mode = path.stat().st_mode
    except OSError as error:
        raise ConfigError(f"{name}: {reason_of(error)}") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{name}: more than {_MAX_BYTES} bytes")
    secret = content.rstrip(b"\r\n")
    # HMAC fills a key up with zeros, so those at its end count for nothing.
    num_bytes = len(secret.rstrip(b"\0"))
    if num_bytes < _MIN_BYTES:
        raise ConfigError(f"{name}: {num_bytes} bytes, at least {_MIN_BYTES} make a secret")
    if mode & stat.S_IROTH:
        _log.warning("others can read the cache secret", path=str(path), mode=f"{mode & 0o777:o}")
    return secret
