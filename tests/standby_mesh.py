"""A mesh of real processes with two schedulers: one is active, the other stands by."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

from chunkmesh.address import HostPort
from chunkmesh.retrying import Servers
from tests.eventually import eventually_blocking
from tests.free_port import free_port
from tests.service_process import WAIT_S, Service, ServiceProcess
from tests.valkey import Valkey

PAGE_TOKENS = 16


@dataclasses.dataclass(slots=True, kw_only=True)
class Scheduler(ServiceProcess):
    """A scheduler and where it listens."""

    users: HostPort
    internal: HostPort


@dataclasses.dataclass(slots=True, kw_only=True)
class HiCache(ServiceProcess):
    """A hicache-server and where it listens."""

    address: HostPort


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """What a mesh is made of beside two schedulers."""

    layers: tuple[str, ...] = ("0-1", "2-3")
    """One worker each."""
    num_hicaches: int = 0
    """Up to 2: each scheduler asks one of its own. Without any, devices are the only cache."""
    scheduler_flags: tuple[str, ...] = ()
    worker_flags: tuple[str, ...] = ()
    hicache_flags: tuple[str, ...] = ()
    are_forked: bool = True
    """Quick to start, but no measure of memory."""


class StandbyMesh:
    """Owns the processes but Valkey; everything listens on loopback, and comes back there."""

    def __init__(self, model: Path, valkey: Valkey, folder: Path, shape: Shape = Shape()) -> None:
        """Start nothing yet; logs go to folder."""
        self.valkey = valkey
        self._model = model
        self._folder = folder
        self._shape = shape
        self.hicaches = [self._hicache(index) for index in range(shape.num_hicaches)]
        self.schedulers = [self._scheduler(index) for index in range(2)]
        self.workers = [self._worker(index) for index in range(len(shape.layers))]

    @contextlib.contextmanager
    def running(self) -> Iterator[StandbyMesh]:
        """Run all inside, from when all of them do what they are there for."""
        processes = (*self.hicaches, *self.schedulers, *self.workers)
        try:
            for each in processes:
                each.start()
            self.wait_up(*processes)
            yield self
        finally:
            for each in processes:
                each.close()

    @property
    def services(self) -> Mapping[str, Service]:
        """All that may be lost and started again, by name."""
        counts: dict[str, int] = {}
        named: dict[str, Service] = {"valkey": self.valkey}
        for each in (*self.hicaches, *self.schedulers, *self.workers):
            kind = each.command[0].removeprefix("chunkmesh-")
            counts[kind] = counts.get(kind, 0) + 1
            named[f"{kind} {counts[kind]}"] = each
        return named

    @property
    def active(self) -> Scheduler:
        """The scheduler that serves; waits for one that does."""
        serving: list[Scheduler] = []

        def is_served() -> bool:
            serving[:] = (each for each in self.schedulers if each.ready()["ready"])
            return bool(serving)

        eventually_blocking(is_served, within_s=WAIT_S, why=self.logs)
        return serving[0]

    def servers(self) -> Servers:
        """Return what a patient client knows."""
        return Servers([each.users for each in self.schedulers], retry_for_s=30)

    def wait_up(self, *services: Service) -> None:
        """Wait until they do what they are there for."""
        eventually_blocking(
            lambda: all(each.is_up() for each in services), within_s=WAIT_S, why=self.logs
        )

    def wait_state(self, scheduler: Scheduler, state: str) -> None:
        """Wait until /ready of a scheduler says so."""
        eventually_blocking(
            lambda: scheduler.ready()["state"] == state, within_s=WAIT_S, why=self.logs
        )

    def logs(self) -> str:
        """Return the ends of all logs."""
        return "\n".join(path.read_text()[-2000:] for path in sorted(self._folder.glob("*.log")))

    def _scheduler(self, index: int) -> Scheduler:
        users, internal, http = (free_port() for _ in range(3))
        own_cache = self.hicaches[index : index + 1] or self.hicaches[:1]
        command = (
            "chunkmesh-scheduler", f"--model-path={self._model}", f"--port={users}",
            f"--internal-port={internal}", f"--http-port={http}", f"--page-size={PAGE_TOKENS}",
            "--mesh-name=tested", f"--redis-url={self.valkey.url}",
            *(f"--hicache-url={each.address}" for each in own_cache),
            *self._shape.scheduler_flags,
        )  # fmt: skip
        return Scheduler(
            is_forked=self._shape.are_forked,
            command=command,
            http_port=http,
            log_path=self._folder / f"scheduler-{index}.log",
            users=HostPort(host="127.0.0.1", port=users),
            internal=HostPort(host="127.0.0.1", port=internal),
        )

    def _hicache(self, index: int) -> HiCache:
        port, http = free_port(), free_port()
        command = (
            "hicache-server", f"--port={port}", f"--http-port={http}",
            f"--redis-url={self.valkey.url}", *self._shape.hicache_flags,
        )  # fmt: skip
        return HiCache(
            is_forked=self._shape.are_forked,
            command=command,
            http_port=http,
            log_path=self._folder / f"hicache-{index}.log",
            address=HostPort(host="127.0.0.1", port=port),
        )

    def _worker(self, index: int) -> ServiceProcess:
        http = free_port()
        schedulers = ",".join(str(each.internal) for each in self.schedulers)
        stored = (f"--redis-url={self.valkey.url}",) if self.hicaches else ()
        command = (
            "stage-worker", f"--model-path={self._model}", f"--layers={self._shape.layers[index]}",
            f"--scheduler={schedulers}", "--port=0", f"--http-port={http}",
            f"--data-port={free_port()}", "--transport=grpc", "--profile=off", *stored,
            *self._shape.worker_flags,
        )  # fmt: skip
        return ServiceProcess(
            is_forked=self._shape.are_forked,
            command=command,
            http_port=http,
            log_path=self._folder / f"worker-{index}.log",
        )
