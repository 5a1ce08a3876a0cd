"""One service of a mesh as a process of its own, to be killed, stopped, ended and started again."""

from __future__ import annotations

import dataclasses
import json
import signal
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.forked_command import ForkedCommand, do_nothing

_UP = frozenset({"serving", "spare", "standby"})
"""What a side door says of a service that does what it is there for."""
WAIT_S = 100.0
"""For what takes a moment on a machine that has nothing else to do."""


class Service(Protocol):
    """What a mesh is made of."""

    def start(self) -> None:
        """Start it, for the first time or again: where it was, with what it was told."""

    def is_up(self) -> bool:
        """Whether it does what it is there for."""

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""

    def exit_status(self) -> int:
        """Wait for its end; minus the signal's number if it died of one."""

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait, and return the exit status."""

    def memory_bytes(self) -> int:
        """Return what it holds of memory now."""


@dataclasses.dataclass(slots=True, kw_only=True)
class ServiceProcess:
    """Owns one of our own commands."""

    command: tuple[str, ...]
    """Its program and flags; all ports are told, so that it comes back where it was."""
    log_path: Path
    http_port: int | None = None
    """Of its side door; None where tests do not reach it."""
    is_forked: bool = True
    """Else it is started as anybody does: slowly, and with memory of its own."""
    prepare: Callable[[], None] = do_nothing
    """What a forked one does first."""
    _running: ForkedCommand | subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start it; it appends to its log."""
        if self.is_forked:
            self._running = ForkedCommand(
                *self.command, log_path=self.log_path, prepare=self.prepare
            )
            return
        program = Path(sys.executable).parent / self.command[0]
        with self.log_path.open("ab") as log:
            self._running = subprocess.Popen(
                [str(program), *self.command[1:]], stdout=log, stderr=log
            )

    def ready(self) -> dict[str, Any]:
        """Ask the side door."""
        assert self.http_port is not None
        return readiness_at(self.http_port)

    def is_up(self) -> bool:
        """Whether it serves, or waits as a spare or a standby to do so."""
        return self.ready()["state"] in _UP

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._running is not None
        self._running.send_signal(number)

    def exit_status(self) -> int:
        """Wait for its end; it may be started again then."""
        assert self._running is not None
        status = self._running.wait(WAIT_S)
        self._running = None
        return status

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait, and return the exit status."""
        self.send(number)
        return self.exit_status()

    def memory_bytes(self) -> int:
        """Return what it holds of memory now."""
        assert self._running is not None
        return resident_bytes(self._running.pid)

    def close(self) -> None:
        """Kill it, if it still runs, and wait."""
        if self._running is not None:
            self.end(signal.SIGKILL)


def readiness_at(http_port: int) -> dict[str, Any]:
    """Return what the side door at a port says; an answer of 503 is an answer."""
    url = f"http://127.0.0.1:{http_port}/ready"
    try:
        with urllib.request.urlopen(url, timeout=5) as said:
            body: dict[str, Any] = json.load(said)
    except urllib.error.HTTPError as error:
        body = json.load(error)
    except OSError:
        body = {"ready": False, "state": "gone", "reason": "not reached"}
    return body


def resident_bytes(pid: int) -> int:
    """Return the memory of a process of ours that is in use."""
    fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
    return int(fields[1]) * 4096
