"""Stage workers as processes of their own, to be killed, stopped and asked to leave."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from scheduler.serve import RunningScheduler, running
from scheduler.settings import SchedulerSettings
from tests.eventually import eventually
from tests.forked_command import do_nothing
from tests.free_port import free_port
from tests.service_process import WAIT_S, ServiceProcess


@dataclasses.dataclass(slots=True, kw_only=True)
class WorkerProcess(ServiceProcess):
    """One `stage-worker`."""

    data_address: str
    """By which the scheduler knows it."""

    async def ended(self) -> int:
        """Wait for the process to end, and return its exit status."""
        return await asyncio.to_thread(self.exit_status)


class WorkerProcesses:
    """A scheduler in this process, and workers to come and go."""

    def __init__(self, model: Path, scheduler: RunningScheduler, folder: Path) -> None:
        """Begin without workers; they log into folder."""
        self.loop = scheduler.control_loop
        self.scheduler = scheduler
        self._model = model
        self._folder = folder
        self._started: list[WorkerProcess] = []

    def start(
        self, layers: str, *more: str, prepare: Callable[[], None] = do_nothing
    ) -> WorkerProcess:
        """Start one more worker, prepared by a call in it."""
        data, http = free_port(), free_port()
        worker = WorkerProcess(
            command=(
                "stage-worker", f"--model-path={self._model}", f"--layers={layers}",
                f"--scheduler={self.scheduler.internal_address}", f"--data-port={data}",
                f"--http-port={http}", "--port=0", "--profile=off", "--log-format=text", *more,
            ),
            log_path=self._folder / f"worker-{len(self._started)}.log",
            http_port=http,
            prepare=prepare,
            data_address=f"127.0.0.1:{data}",
        )  # fmt: skip
        self._started.append(worker)
        worker.start()
        return worker

    def at(self, data_address: str) -> WorkerProcess:
        """Return the one with a data address."""
        return next(each for each in self._started if each.data_address == data_address)

    @property
    def routes(self) -> dict[int, list[str]]:
        """Data addresses of the workers of each route that stands, by epoch."""
        return {
            epoch: [each.data_address for each in live.workers]
            for epoch, live in self.loop.workers.routes.items()
        }

    async def until_route(self, *workers: WorkerProcess) -> float:
        """Wait until some workers are a route; return the seconds that it took."""
        addresses = [each.data_address for each in workers]
        begin_s = time.monotonic()
        await eventually(lambda: addresses in self.routes.values(), within_s=WAIT_S)
        return time.monotonic() - begin_s

    async def until_ready(self, worker: WorkerProcess, state: str) -> None:
        """Wait until a worker says of itself that it is in some state."""

        async def is_there() -> bool:
            said: str = (await asyncio.to_thread(worker.ready))["state"]
            return said == state

        await eventually(is_there, within_s=WAIT_S)

    def end(self) -> None:
        """Kill all that still run."""
        for worker in self._started:
            worker.close()


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
