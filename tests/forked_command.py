"""One of our commands as a process that is forked from one which has imported what it needs.

To be started, signalled, and ended as the command that it is, and as subprocess.Popen is: only the
seconds are spared that a new interpreter takes to import torch; but memory is partly shared.

What tests start commands with, each by means of the one before: ForkedCommand, one process;
service_process.ServiceProcess, which is started again and again and asked at its side door;
worker_processes, standby_mesh and mesh_of_hosts, the meshes. forked_services.Services starts single
commands by hand.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

_MODULES = {
    "chunkmesh-scheduler": "scheduler.__main__",
    "hicache-server": "hicache.__main__",
    "stage-worker": "stage_worker.__main__",
    "transport-peer": "tests.transport_peer",
}
_FORKING = multiprocessing.get_context("forkserver")
# Each process imports what has started the tests, which is pytest.
_FORKING.set_forkserver_preload([*_MODULES.values(), "pytest"])


def do_nothing() -> None:
    """Be as the parent is."""


class ForkedCommand:
    """One of them."""

    def __init__(
        self, *command: str, log_path: Path, prepare: Callable[[], None] = do_nothing
    ) -> None:
        """Start it, prepared by a call in it; it adds what it writes to the file.

        It is killed when this process exits.
        """
        self.command = command
        log_path.touch()
        self._log_path = log_path
        self._process = _FORKING.Process(
            target=_run, args=(command, str(log_path), dict(os.environ), prepare), daemon=True
        )
        self._process.start()

    @property
    def pid(self) -> int:
        """Its process id."""
        assert self._process.pid is not None
        return self._process.pid

    @property
    def output(self) -> str:
        """What all that log to the same file have written."""
        return self._log_path.read_text()

    def poll(self) -> int | None:
        """Return how it ended, minus the signal's number if by a signal; None while it runs."""
        return self._process.exitcode

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal, unless it has ended."""
        if self._process.is_alive():
            os.kill(self.pid, number)

    def wait(self, timeout: float) -> int:
        """Wait so many seconds for its end, and return how it ended.

        Raises:
            subprocess.TimeoutExpired: it still runs.
        """
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.command, timeout)
        return self._process.exitcode

    def kill(self) -> None:
        """Let it be gone without a word."""
        self.send_signal(signal.SIGKILL)


def _run(
    command: tuple[str, ...], log: str, environ: dict[str, str], prepare: Callable[[], None]
) -> None:
    """Be the command."""
    prepare()
    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for stream in (sys.stdout, sys.stderr):
        os.dup2(descriptor, stream.fileno())
    os.environ.clear()
    os.environ.update(environ)
    sys.argv = list(command)
    importlib.import_module(_MODULES[command[0]]).main()
