"""Leaves something alone for a while after it failed, and logs that at a limited rate."""

from __future__ import annotations

import time

import structlog

PAUSE_S = 1.0
LOG_S = 30.0

_log = structlog.get_logger(__name__)


class Pause:
    """Owner of one such while; several threads may use it."""

    def __init__(self, event: str) -> None:
        """Take the log event, such as "prefix cache away"."""
        self._event = event
        self._until_s = 0.0
        self._log_at_s = 0.0

    @property
    def active(self) -> bool:
        """Whether the while has not passed."""
        return time.monotonic() < self._until_s

    def begin(self, reason: str) -> None:
        """Start it (again) now."""
        now_s = time.monotonic()
        self._until_s = now_s + PAUSE_S
        if now_s >= self._log_at_s:
            self._log_at_s = now_s + LOG_S
            _log.warning(self._event, reason=reason)
