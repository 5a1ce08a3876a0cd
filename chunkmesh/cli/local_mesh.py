"""A whole mesh on this machine as a context manager: `with LocalMesh(options) as mesh: ...`.

Used by `chunkmesh up`, the demo, tests and benchmarks. Synchronous; starts no thread. Whatever
happens, no process is left: the context's end stops all, and the kernel kills them if this process
dies first. Enter it on a thread that lives as long as the mesh.
"""

from __future__ import annotations

import shutil
import tempfile
from contextlib import ExitStack
from pathlib import Path
from types import TracebackType
from typing import Self, TypeVar

from chunkmesh.cli.child_process import ChildCommand
from chunkmesh.cli.endpoints import MeshEndpoints
from chunkmesh.cli.mesh_commands import (
    GATEWAY,
    SCHEDULER,
    STANDBY,
    planned_central,
    planned_gateway,
    planned_standby,
    planned_workers,
)
from chunkmesh.cli.mesh_options import MeshOptions
from chunkmesh.cli.mesh_ports import choose_endpoints
from chunkmesh.cli.partition import read_num_layers, stage_ranges, worker_ranges
from chunkmesh.cli.process_family import (
    ChildFailed,
    ChildState,
    Observer,
    PlannedChild,
    ProcessFamily,
)
from chunkmesh.cli.readiness import RedisSocket
from chunkmesh.cli.valkey import check_listens, find_server, server_command, socket_path, socket_url
from chunkmesh.errors import InvariantViolated
from chunkmesh.layers import LayerRange

_Part = TypeVar("_Part")


def _ignore(_states: tuple[ChildState, ...]) -> None:
    """Observe nothing."""


class LocalMesh:
    """Redis (if needed), hicache-server, schedulers, stage workers and gateway of one mesh."""

    def __init__(self, options: MeshOptions, observe: Observer = _ignore) -> None:
        """Start nothing yet. observe sees the processes several times a second until all serve."""
        self._options = options
        self._observe = observe
        self._family: ProcessFamily | None = None
        self._endpoints: MeshEndpoints | None = None
        self._run_dir: Path | None = None

    def __enter__(self) -> Self:
        """Start everything and wait until all of it serves.

        Raises:
            ConfigError: the options fit neither the model nor this machine; nothing was started.
            ChildFailed: a process died or is not ready in time; all were taken down, logs kept.
        """
        options = self._options
        layers = stage_ranges(
            read_num_layers(options.model_path),
            num_stages=options.num_stages,
            named=options.layers,
        )
        layers = worker_ranges(layers, options.replicas)
        if options.redis_url is not None:
            _check_redis_url(options.redis_url)
            if options.mesh_name is not None:
                check_listens(options.redis_url)
        program = find_server() if options.cache and options.redis_url is None else None
        self._run_dir = _make_run_dir(options)
        with ExitStack() as unless_started:
            unless_started.push(self._abandon)
            self._start(layers, program)
            unless_started.pop_all()
        return self

    def _start(self, layers: tuple[LayerRange, ...], program: Path | None) -> None:
        options, run_dir = self._options, self.run_dir
        redis_url = options.redis_url if program is None else socket_url(run_dir)
        self._endpoints = choose_endpoints(options, layers, redis_url)
        self._family = family = ProcessFamily(run_dir, grace_s=options.grace_s)
        if program is not None:
            family.start(_redis(program, options, run_dir))
            family.wait_ready(options.ready_timeout_s, self._observe)
        for planned in planned_central(options, self._endpoints):
            family.start(planned)
        family.start(*planned_workers(options, self._endpoints))
        family.start(*planned_gateway(options, self._endpoints))
        family.wait_ready(options.ready_timeout_s, self._observe)
        # Last, so that it is the other one that leads.
        if standby := planned_standby(options, self._endpoints):
            family.start(*standby)
            family.wait_ready(options.ready_timeout_s, self._observe)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Take everything down: gateway, workers, scheduler, hicache-server, Redis.

        Unless something failed gateway and schedulers go first: they let running requests end.
        """
        self._take_down(keep_logs=kind is not None and issubclass(kind, Exception))

    def _abandon(
        self,
        _kind: type[BaseException] | None,
        error: BaseException | None,
        _traceback: TracebackType | None,
    ) -> None:
        self._take_down(keep_logs=isinstance(error, ChildFailed))

    @property
    def endpoints(self) -> MeshEndpoints:
        """Where everything listens; known once started."""
        return _started(self._endpoints)

    @property
    def scheduler_address(self) -> str:
        """The users' address, HOST:PORT."""
        return str(self.endpoints.scheduler)

    @property
    def name(self) -> str | None:
        """Under which its schedulers agree who leads; None if there is only one."""
        return self._options.mesh_name

    @property
    def certs(self) -> Path | None:
        """Folder of the certificates; None if all is plain text."""
        return self._options.certs

    @property
    def run_dir(self) -> Path:
        """Folder of the logs, NAME.log each."""
        return _started(self._run_dir)

    def processes(self) -> tuple[ChildState, ...]:
        """Return all processes in the order of their start; empty once taken down."""
        return () if self._family is None else self._family.states()

    def check(self) -> tuple[str, ...]:
        """Look whether all processes still run; return news of those that others stand in for.

        Raises:
            ChildFailed: another one has ended; names it and shows its last log lines.
        """
        return _started(self._family).check()

    def kill(self) -> None:
        """Send SIGKILL to all processes without waiting; leave the context afterwards."""
        if self._family is not None:
            self._family.kill()

    def _take_down(self, *, keep_logs: bool) -> None:
        try:
            if self._family is not None:
                try:
                    if not keep_logs:
                        self._family.end(GATEWAY)
                        self._family.end(SCHEDULER, STANDBY)
                finally:
                    self._family.close()
                self._family = None
        finally:
            if not keep_logs and self._options.log_dir is None:
                shutil.rmtree(self.run_dir, ignore_errors=True)


def _started(part: _Part | None) -> _Part:
    if part is None:
        raise InvariantViolated("the mesh was not started")
    return part


def _check_redis_url(url: str) -> None:
    """Refuse what is no address of a Redis, or of several; whether they answer may change later.

    Raises:
        ConfigError: a URL is none.
    """
    # The client takes long to import, and few give a Redis of their own.
    from chunkmesh.kv_store import KvStore  # noqa: PLC0415

    KvStore(*url.split(",")).close()


def _make_run_dir(options: MeshOptions) -> Path:
    if options.log_dir is None:
        return Path(tempfile.mkdtemp(prefix="chunkmesh-"))
    options.log_dir.mkdir(parents=True, exist_ok=True)
    return options.log_dir.resolve()


def _redis(program: Path, options: MeshOptions, run_dir: Path) -> PlannedChild:
    command = server_command(program, run_dir, max_bytes=options.redis_max_bytes)
    return PlannedChild(
        command=ChildCommand(name="redis", command=command),
        probe=RedisSocket(path=socket_path(run_dir)),
        address=str(socket_path(run_dir)),
    )
