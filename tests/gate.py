"""Holds what a stage computes until a test has seen, or done, what is to come before."""

from __future__ import annotations

import math
import threading

_WAIT_S = 60.0


class Gate:
    """Lets forwards of a stage pass; closed at first. For any thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._num_left = 0.0

    def open(self) -> None:
        """Let all pass from now on."""
        self.let(math.inf)

    def close(self) -> None:
        """Let none pass from now on."""
        self.let(0)

    def let(self, num_forwards: float) -> None:
        """Let only so many pass from now on."""
        with self._changed:
            self._num_left = num_forwards
            self._changed.notify_all()

    def enter(self) -> None:
        """Wait until there is a pass, and take it."""
        with self._changed:
            assert self._changed.wait_for(lambda: self._num_left > 0, _WAIT_S), "never let through"
            self._num_left -= 1
