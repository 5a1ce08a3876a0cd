"""Files that may change while a service runs: certificates, keys of users, passwords.

Looked at whenever they are needed, which costs a few microseconds; read again when they have
changed. What cannot be used does not replace what was in use. It is tried again after a while,
changed or not: a certificate may have been made by a clock that is ahead, and for want of a file
descriptor a key that was taken away must not count for ever.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Generic, TypeVar

import structlog

from chunkmesh.errors import ConfigError
from chunkmesh.trust.metrics import RELOADS

_log = structlog.get_logger(__name__)
RETRY_S = 1.0
"""Between two tries to read what cannot be used."""
_Stamp = tuple[int, int, int, int] | None
T = TypeVar("T")


class WatchedFiles(Generic[T]):
    """What some files hold now. Any thread may ask."""

    def __init__(
        self,
        paths: Sequence[Path],
        read: Callable[[], T],
        *,
        name: str,
        clock_s: Callable[[], float] = time.monotonic,
    ) -> None:
        """Read for the first time; name is what logs and metrics call the files.

        Raises:
            ConfigError: read does so.
        """
        self._paths = tuple(paths)
        self._read = read
        self._name = name
        self._clock_s = clock_s
        self._fault = ""
        """Why what the files hold is not in use; empty if it is."""
        self._next_s = 0.0
        """When to try again, with a fault."""
        self._lock = threading.Lock()
        self._stamps = self._look()
        self._value = read()

    def current(self) -> T:
        """Return what the files hold, or held when they last could be used."""
        with self._lock:
            stamps = self._look()
            has_changed = stamps != self._stamps
            if has_changed or (self._fault and self._clock_s() >= self._next_s):
                self._stamps = stamps
                self._read_again(is_news=has_changed)
            return self._value

    def _read_again(self, *, is_news: bool) -> None:
        """Read, and tell how that went, unless it is as it was the last time."""
        paths = [str(path) for path in self._paths]
        try:
            self._value = self._read()
        except ConfigError as error:
            is_news |= str(error) != self._fault
            self._fault, self._next_s = str(error), self._clock_s() + RETRY_S
            if is_news:
                RELOADS.labels(self._name, "failed").inc()
                _log.error(
                    "files kept as they were", files=self._name, paths=paths, reason=self._fault
                )
        else:
            self._fault = ""
            RELOADS.labels(self._name, "ok").inc()
            _log.info("files read again", files=self._name, paths=paths)

    def _look(self) -> tuple[_Stamp, ...]:
        return tuple(map(_stamp, self._paths))


def _stamp(path: Path) -> _Stamp:
    """Return what changes with a file, also where a link to it is turned; None if it is away."""
    try:
        found = path.stat()
    except OSError:
        return None
    return (found.st_mtime_ns, found.st_ctime_ns, found.st_ino, found.st_size)
