"""What a worker knows of schedulers that it cannot reach: told by /ready, logged now and then."""

from __future__ import annotations

import time
from collections.abc import Callable

import structlog

_log = structlog.get_logger(__name__)
_LOG_PAUSE_S = 60.0
"""Between two log lines about one scheduler that stays away."""


class LostScheduler:
    """Owns the reason why no scheduler is connected. On the event loop only."""

    def __init__(self, clock_s: Callable[[], float] = time.monotonic) -> None:
        """Begin with nothing tried."""
        self.reason = ""
        """Why there is none, in words; empty while one is connected or the first is tried."""
        self._clock_s = clock_s
        self._logged_s: dict[str, float] = {}
        """When each scheduler was last said to be away."""

    def connected(self) -> None:
        """Hear that a scheduler answers: its next loss is news."""
        self.reason = ""
        self._logged_s.clear()

    def lost(self, scheduler: str, reason: str) -> None:
        """Hear that one does not, or no longer; may be called at every attempt."""
        self.reason = f"no scheduler answers at {scheduler}"
        now_s = self._clock_s()
        if now_s - self._logged_s.get(scheduler, -_LOG_PAUSE_S) >= _LOG_PAUSE_S:
            self._logged_s[scheduler] = now_s
            _log.warning("scheduler lost", scheduler=scheduler, reason=reason)
