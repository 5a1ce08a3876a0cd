"""Starts services for a test and ends them, each with a log of its own."""

from __future__ import annotations

import contextlib
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

from tests.forked_command import ForkedCommand

_WAIT_S = 60


class Services:
    """Owns those of one test."""

    def __init__(self, folder: Path) -> None:
        """Log into folder."""
        self._folder = folder
        self._num_started = 0

    @contextlib.contextmanager
    def started(self, *command: str) -> Iterator[ForkedCommand]:
        """Run a service inside; it is ended afterwards."""
        process = self._start(command)
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(_WAIT_S)
            except subprocess.TimeoutExpired:
                process.kill()

    def refusal(self, *command: str) -> str:
        """Run a service that must refuse to start; return its one line of reason."""
        process = self._start(command)
        try:
            assert 2 == process.wait(_WAIT_S), process.output
        finally:
            process.kill()
        return process.output.splitlines()[-1]

    def _start(self, command: tuple[str, ...]) -> ForkedCommand:
        self._num_started += 1
        return ForkedCommand(*command, log_path=self._folder / f"{self._num_started}.log")
