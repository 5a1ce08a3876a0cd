"""A mesh of real processes with two schedulers: one is active, the other stands by."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import signal
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.errors import ChunkMeshError
from chunkmesh.retrying import Servers
from chunkmesh.v1 import generation_pb2 as pb
from tests.forked_command import ForkedCommand
from tests.free_port import free_port

WAIT_S = 100
_PAGE_TOKENS = "16"


@dataclasses.dataclass(slots=True)
class Process:
    """One service, its side door, and the file of its log."""

    command: tuple[str, ...]
    http_port: int
    log_path: Path
    running: ForkedCommand

    def ready(self) -> dict[str, Any]:
        """Ask the side door; an answer of 503 is an answer."""
        url = f"http://127.0.0.1:{self.http_port}/ready"
        try:
            with urllib.request.urlopen(url, timeout=2) as said:
                body: dict[str, Any] = json.load(said)
        except urllib.error.HTTPError as error:
            body = json.load(error)
        except OSError:
            body = {"ready": False, "state": "gone", "reason": "not reached"}
        return body

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Send a signal, wait, and return the exit status."""
        self.running.send_signal(number)
        return self.running.wait(WAIT_S)


@dataclasses.dataclass(slots=True)
class Scheduler(Process):
    """A scheduler and where it listens."""

    users: HostPort
    internal: HostPort


class StandbyMesh:
    """Owns the processes; everything listens on loopback."""

    def __init__(self, model: Path, redis_url: str, folder: Path) -> None:
        """Start nothing yet; logs go to folder."""
        self.schedulers: list[Scheduler] = []
        self.workers: list[Process] = []
        self._model = model
        self._redis_url = redis_url
        self._folder = folder
        self._num_started = 0

    @contextlib.contextmanager
    def running(self, *scheduler_flags: str) -> Iterator[StandbyMesh]:
        """Run two schedulers and two workers inside, from when requests are served."""
        try:
            for _ in range(2):
                self.schedulers.append(self._scheduler(scheduler_flags))
            for layers in ("0-1", "2-3"):
                self.workers.append(self._worker(layers))
            self.wait_served()
            yield self
        finally:
            for process in (*self.schedulers, *self.workers):
                process.running.kill()
                process.running.wait(WAIT_S)

    @property
    def active(self) -> Scheduler:
        """The scheduler that serves."""
        return next(each for each in self.schedulers if each.ready()["ready"])

    def servers(self) -> Servers:
        """Return what a patient client knows."""
        return Servers([each.users for each in self.schedulers], retry_for_s=30)

    def wait_served(self) -> None:
        """Wait until a request is answered."""
        deadline_s = time.monotonic() + WAIT_S
        while not any(each.ready()["ready"] for each in self.schedulers):
            assert time.monotonic() < deadline_s, self.logs()
            time.sleep(0.02)

    def wait_state(self, scheduler: Scheduler, state: str) -> None:
        """Wait until /ready of a scheduler says so."""
        deadline_s = time.monotonic() + WAIT_S
        while (said := scheduler.ready())["state"] != state:
            assert time.monotonic() < deadline_s, (said, self.logs())
            time.sleep(0.02)

    def restart(self, scheduler: Scheduler) -> None:
        """Start a scheduler again that has ended."""
        scheduler.running = ForkedCommand(*scheduler.command, log_path=scheduler.log_path)

    def logs(self) -> str:
        """Return the ends of all logs."""
        processes = (*self.schedulers, *self.workers)
        return "\n".join(each.log_path.read_text()[-2000:] for each in processes)

    def _scheduler(self, flags: tuple[str, ...]) -> Scheduler:
        users, internal, http = (free_port() for _ in range(3))
        command = (
            "chunkmesh-scheduler", f"--model-path={self._model}", f"--port={users}",
            f"--internal-port={internal}", f"--http-port={http}", f"--page-size={_PAGE_TOKENS}",
            "--mesh-name=tested", f"--redis-url={self._redis_url}", *flags,
        )  # fmt: skip
        log_path = self._log_path("scheduler")
        return Scheduler(
            command=command,
            http_port=http,
            log_path=log_path,
            running=ForkedCommand(*command, log_path=log_path),
            users=HostPort(host="127.0.0.1", port=users),
            internal=HostPort(host="127.0.0.1", port=internal),
        )

    def _worker(self, layers: str) -> Process:
        http = free_port()
        schedulers = ",".join(str(each.internal) for each in self.schedulers)
        command = (
            "stage-worker", f"--model-path={self._model}", f"--layers={layers}",
            f"--scheduler={schedulers}", "--port=0", f"--http-port={http}",
            f"--data-port={free_port()}", "--transport=grpc", "--profile=off",
        )  # fmt: skip
        log_path = self._log_path("worker")
        return Process(command, http, log_path, ForkedCommand(*command, log_path=log_path))

    def _log_path(self, name: str) -> Path:
        self._num_started += 1
        return self._folder / f"{name}-{self._num_started}.log"


class Load:
    """Clients that send one request after the other, and try each again as clients should."""

    def __init__(self, servers: Servers, num_clients: int = 3) -> None:
        """Send nothing yet."""
        self.outputs: list[tuple[int, ...]] = []
        """Of the requests that have ended, in the order of their ends."""
        self.errors: list[ChunkMeshError] = []
        self._servers = servers
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run) for _ in range(num_clients)]

    @contextlib.contextmanager
    def running(self) -> Iterator[Load]:
        """Send requests while inside; on leaving, wait for the ends of those that run."""
        for thread in self._threads:
            thread.start()
        try:
            yield self
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(WAIT_S)

    def wait_for(self, num_more: int) -> None:
        """Wait for the ends of so many more requests."""
        wanted = len(self.outputs) + num_more
        deadline_s = time.monotonic() + WAIT_S
        while len(self.outputs) < wanted:
            assert time.monotonic() < deadline_s, self.errors
            time.sleep(0.01)

    def _run(self) -> None:
        with GenerationClient(self._servers) as client:
            while not self._stop.is_set():
                try:
                    self.outputs.append(generated(client))
                except ChunkMeshError as error:
                    self.errors.append(error)


def generated(client: GenerationClient) -> tuple[int, ...]:
    """Run a request whose tokens come all at once; return its output."""
    params = pb.SamplingParams(temperature=0, max_new_tokens=8, ignore_eos=True)
    request = pb.GenerateRequest(text="What is a mesh?", sampling_params=params)
    return tuple(list(client.generate(request))[-1].complete.output_ids)
