"""Stage workers as processes of their own, to be killed: forked from one that has torch loaded."""

from __future__ import annotations

import contextlib
import dataclasses
import multiprocessing
import multiprocessing.process
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

from chunkmesh.address import HostPort
from chunkmesh.ports import bind_unused

_END_S = 10.0
_FORKED = multiprocessing.get_context("forkserver")
_FORKED.set_forkserver_preload(["stage_worker.__main__"])


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """One of them."""

    layers: str
    data_port: int
    """By which the scheduler knows it."""
    process: multiprocessing.process.BaseProcess

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def kill(self) -> None:
        """Let it be gone without a word."""
        self.send(signal.SIGKILL)

    def end(self) -> None:
        """Kill it, if it still runs, and wait."""
        if self.process.is_alive():
            self.kill()
        self.process.join(_END_S)


class WorkerProcesses:
    """Starts workers of one model for one scheduler."""

    def __init__(self, model_path: Path, scheduler: HostPort, folder: Path, *flags: str) -> None:
        """Log into folder; flags are those of every worker."""
        self.all: list[WorkerProcess] = []
        self._folder = folder
        self._flags = (
            *("--model-path", str(model_path), "--scheduler", str(scheduler)),
            *("--port", "0", "--http-port", "0", "--profile", "off", *flags),
        )

    def start(self, *layers: str) -> None:
        """Start a worker for each range of layers; they attach in a moment."""
        for each in layers:
            with bind_unused("127.0.0.1") as bound:
                data_port = int(bound.getsockname()[1])
            log = self._folder / f"worker-{len(self.all)}.log"
            arguments = ["--layers", each, "--data-port", str(data_port), *self._flags]
            process = _FORKED.Process(target=_run, args=(arguments, str(log)), daemon=True)
            process.start()
            self.all.append(WorkerProcess(layers=each, data_port=data_port, process=process))

    def at(self, data_address: str) -> WorkerProcess:
        """Return the one with a data address."""
        port = int(data_address.rpartition(":")[2])
        return next(each for each in self.all if each.data_port == port)

    def end(self) -> None:
        """Kill all that are left."""
        for each in self.all:
            each.end()


@contextlib.contextmanager
def worker_processes(
    model_path: Path, scheduler: HostPort, folder: Path, *flags: str
) -> Iterator[WorkerProcesses]:
    """Have workers inside; none is left behind."""
    processes = WorkerProcesses(model_path, scheduler, folder, *flags)
    try:
        yield processes
    finally:
        processes.end()


def _run(arguments: list[str], log: str) -> None:
    """Be a stage worker."""
    from stage_worker.__main__ import main  # noqa: PLC0415 - what the fork server has loaded

    descriptor = os.open(log, os.O_WRONLY | os.O_CREAT)
    os.dup2(descriptor, sys.stdout.fileno())
    os.dup2(descriptor, sys.stderr.fileno())
    sys.argv = ["stage-worker", *arguments]
    main()
