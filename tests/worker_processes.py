"""Stage workers as processes of their own, to be killed, stopped and asked to leave."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from chunkmesh.address import HostPort
from scheduler.serve import RunningScheduler, running
from scheduler.settings import SchedulerSettings
from tests.eventually import eventually
from tests.free_port import free_port

_PROGRAM = Path(sys.executable).parent / "stage-worker"
WAIT_S = 120.0
"""For what takes a moment on a machine that has nothing else to do."""


class WorkerProcess:
    """One `stage-worker`."""

    def __init__(self, model: Path, layers: str, scheduler: HostPort, *more: str) -> None:
        """Start it."""
        self.data, self.http = free_port(), free_port()
        self.data_address = f"127.0.0.1:{self.data}"
        self._output: str | None = None
        self.process = subprocess.Popen(
            [
                _PROGRAM,
                f"--model-path={model}",
                f"--layers={layers}",
                f"--scheduler={scheduler}",
                f"--data-port={self.data}",
                f"--http-port={self.http}",
                "--port=0",
                "--profile=off",
                "--log-format=text",
                *more,
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        self.process.send_signal(number)

    async def exit_code(self) -> int:
        """Wait for the process to end."""
        return await asyncio.to_thread(self.process.wait, WAIT_S)

    def ready(self) -> dict[str, Any]:
        """Ask its side door whether it is ready; an answer of 503 is an answer."""
        url = f"http://127.0.0.1:{self.http}/ready"
        try:
            with urllib.request.urlopen(url, timeout=5) as answer:
                body: dict[str, Any] = json.load(answer)
        except urllib.error.HTTPError as error:
            body = json.load(error)
        except OSError:
            body = {"ready": False, "state": "not reached"}
        return body

    def end(self) -> str:
        """Kill it if it still runs; return what it has written."""
        if self._output is None:
            self.process.kill()
            self._output, _ = self.process.communicate()
        return self._output


class WorkerProcesses:
    """A scheduler in this process, and workers to come and go."""

    def __init__(self, model: Path, scheduler: RunningScheduler) -> None:
        """Begin without workers."""
        self.loop = scheduler.control_loop
        self.scheduler = scheduler
        self._model = model
        self._started: list[WorkerProcess] = []

    def start(self, layers: str, *more: str) -> WorkerProcess:
        """Start one more worker."""
        worker = WorkerProcess(self._model, layers, self.scheduler.internal_address, *more)
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
async def worker_processes(model: Path, **settings: Any) -> AsyncIterator[WorkerProcesses]:
    """Run a scheduler and workers while inside."""
    given = {"page_size": 16, "chunked_prefill_size": 64, "drain_timeout": 1.0, **settings}
    scheduler_settings = SchedulerSettings(
        model_path=model, port=0, internal_port=0, http_port=0, **given
    )
    async with running(scheduler_settings) as scheduler:
        workers = WorkerProcesses(model, scheduler)
        with contextlib.ExitStack() as stack:
            stack.callback(workers.end)
            yield workers
