"""Stage workers as processes of their own, to be killed, stopped and asked to leave."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from chunkmesh.address import HostPort
from scheduler.serve import RunningScheduler, running
from scheduler.settings import SchedulerSettings
from tests.eventually import eventually
from tests.forked_command import ForkedCommand
from tests.free_port import free_port
from tests.service_process import readiness_at

WAIT_S = 120.0
"""For what takes a moment on a machine that has nothing else to do."""


class WorkerProcess:
    """One `stage-worker`."""

    def __init__(
        self, model: Path, layers: str, scheduler: HostPort, log_path: Path, *more: str
    ) -> None:
        """Start it."""
        self.data, self.http = free_port(), free_port()
        self.data_address = f"127.0.0.1:{self.data}"
        self.process = ForkedCommand(
            "stage-worker",
            f"--model-path={model}",
            f"--layers={layers}",
            f"--scheduler={scheduler}",
            f"--data-port={self.data}",
            f"--http-port={self.http}",
            "--port=0",
            "--profile=off",
            "--log-format=text",
            *more,
            log_path=log_path,
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        """Wait for the process to end."""
        return await asyncio.to_thread(self.process.wait, WAIT_S)

    def ready(self) -> dict[str, Any]:
        """Ask its side door whether it is ready."""
        return readiness_at(self.http)

    def end(self) -> str:
        """Kill it if it still runs; return what it has written."""
        self.process.kill()
        self.process.wait(WAIT_S)
        return self.process.output


class WorkerProcesses:
    """A scheduler in this process, and workers to come and go."""

    def __init__(self, model: Path, scheduler: RunningScheduler, folder: Path) -> None:
        """Begin without workers; they log into folder."""
        self.loop = scheduler.control_loop
        self.scheduler = scheduler
        self._model = model
        self._folder = folder
        self._started: list[WorkerProcess] = []

    def start(self, layers: str, *more: str) -> WorkerProcess:
        """Start one more worker."""
        log_path = self._folder / f"worker-{len(self._started)}.log"
        address = self.scheduler.internal_address
        worker = WorkerProcess(self._model, layers, address, log_path, *more)
        self._started.append(worker)
        return worker

    @property
    def routes(self) -> dict[int, list[str]]:
        """Data addresses of the workers of each route that stands, by epoch."""
        return {
            epoch: [each.data_address for each in live.workers]
            for epoch, live in self.loop.workers.routes.items()
        }

    async def until(self, reached: Callable[[], bool], limit_s: float = WAIT_S) -> float:
        """Wait for something; return the seconds that it took."""
        begin_s = time.monotonic()
        await eventually(reached, within_s=limit_s)
        return time.monotonic() - begin_s

    async def until_route(self, *workers: WorkerProcess) -> float:
        """Wait until some workers are a route; return the seconds that it took."""
        addresses = [each.data_address for each in workers]
        return await self.until(lambda: addresses in self.routes.values())

    async def until_ready(self, worker: WorkerProcess, state: str) -> None:
        """Wait until a worker says of itself that it is in some state."""

        async def is_there() -> bool:
            said: str = (await asyncio.to_thread(worker.ready))["state"]
            return said == state

        await eventually(is_there, within_s=WAIT_S)

    def end(self) -> None:
        """End all that still run."""
        for worker in self._started:
            worker.end()


@contextlib.asynccontextmanager
async def worker_processes(
    model: Path, folder: Path, **settings: Any
) -> AsyncIterator[WorkerProcesses]:
    """Run a scheduler and workers, which log into folder, while inside."""
    given = {"page_size": 16, "chunked_prefill_size": 64, "drain_timeout": 1.0, **settings}
    scheduler_settings = SchedulerSettings(
        model_path=model, port=0, internal_port=0, http_port=0, **given
    )
    async with running(scheduler_settings) as scheduler:
        workers = WorkerProcesses(model, scheduler, folder)
        with contextlib.ExitStack() as stack:
            stack.callback(workers.end)
            yield workers
