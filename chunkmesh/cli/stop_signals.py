"""Remembers that the user wants to stop, instead of interrupting whatever runs."""

from __future__ import annotations

import signal
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Self

_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequested(Exception):
    """Ctrl-C, SIGTERM or a closed terminal came."""


class StopSignals:
    """Within its context SIGINT, SIGTERM and SIGHUP only set `received`. Main thread only."""

    def __init__(self, on_second: Callable[[], None]) -> None:
        """on_second runs inside the signal handler at every signal after the first."""
        self.received: signal.Signals | None = None
        self._on_second = on_second
        self._previous: dict[signal.Signals, signal._HANDLER] = {}

    def __enter__(self) -> Self:
        for number in _SIGNALS:
            self._previous[number] = signal.signal(number, self._receive)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        for number, previous in self._previous.items():
            signal.signal(number, previous)

    def check(self) -> None:
        """Raise StopRequested if a signal came."""
        if self.received is not None:
            raise StopRequested

    def _receive(self, number: int, _frame: FrameType | None) -> None:
        if self.received is not None:
            self._on_second()
        self.received = signal.Signals(number)
