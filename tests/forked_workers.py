"""Stage workers as processes of their own, to be killed."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
from collections.abc import Iterator
from pathlib import Path

from chunkmesh.address import HostPort
from tests.forked_command import ForkedCommand
from tests.free_port import free_port

_END_S = 10.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """One of them."""

    layers: str
    data_port: int
    """By which the scheduler knows it."""
    process: ForkedCommand

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    def kill(self) -> None:
        """Let it be gone without a word."""
        self.send(signal.SIGKILL)

    def end(self) -> None:
        """Kill it, if it still runs, and wait."""
        self.process.kill()
        self.process.wait(_END_S)


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
            data_port = free_port()
            process = ForkedCommand(
                *("stage-worker", f"--layers={each}", f"--data-port={data_port}", *self._flags),
                log_path=self._folder / f"worker-{len(self.all)}.log",
            )
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
