"""One service of a mesh as a process of its own, to be killed, stopped, ended and started again."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from tests.launched_service import WAIT_S, Launched, fork, launch

_UP = frozenset({"serving", "spare", "standby"})
"""What a side door says of a service that does what it is there for."""
_LOOK_S = 0.02


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
    """Owns one of our own programs."""

    command: tuple[str, ...]
    """Its program and flags; all ports are told, so that it comes back where it was."""
    http_port: int
    """Of its side door."""
    log_path: Path
    is_forked: bool
    _running: Launched | None = None

    def start(self) -> None:
        """Start it; it appends to its log."""
        self._running = (fork if self.is_forked else launch)(self.command, self.log_path)

    def ready(self) -> dict[str, Any]:
        """Ask the side door."""
        return readiness_at(self.http_port)

    def is_up(self) -> bool:
        """Whether it serves, or waits as a spare or a standby to do so."""
        return self.ready()["state"] in _UP

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._running is not None
        os.kill(self._running.pid, number)

    def exit_status(self) -> int:
        """Wait for its end; it may be started again then."""
        assert self._running is not None
        status = self._running.exit_status()
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
        if self._running is not None and not self._running.has_ended():
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


def wait_until(holds: Callable[[], bool], why: Callable[[], str], limit_s: float = WAIT_S) -> float:
    """Look until something holds; return the seconds that it took. Why is told if it does not."""
    begin_s = time.monotonic()
    while not holds():
        assert time.monotonic() < begin_s + limit_s, why()
        time.sleep(_LOOK_S)
    return time.monotonic() - begin_s
