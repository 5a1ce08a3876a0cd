"""A mesh whose services run on hosts of their own, as real processes."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from tests.launched_service import Launched, fork
from tests.network_hosts import Host, Network

_STANDS_S = 100.0


@dataclasses.dataclass(slots=True, kw_only=True)
class ServiceOnHost:
    """A process on a host; its output goes into a file of the host's name."""

    host: Host
    command: tuple[str, ...]
    """Its program and flags."""
    log: Path
    _launched: Launched | None = None

    def start(self) -> None:
        """Start it, for the first time or again."""
        self._launched = fork(self.command, self.log, self.host.enter)

    def send(self, number: signal.Signals) -> None:
        """Send a signal."""
        assert self._launched is not None
        os.kill(self._launched.pid, number)

    def kill(self) -> None:
        """Kill it, if it runs, and wait for its end."""
        assert self._launched is not None
        if not self._launched.has_ended():
            self.send(signal.SIGKILL)
        self._launched.exit_status()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeshOfHosts:
    """What a test may touch of it."""

    network: Network
    scheduler: str
    """Users' address."""
    stub: generation_pb2_grpc.GenerationStub
    services: dict[str, ServiceOnHost]
    """By host."""

    def generate(self, **request: Any) -> pb.GenerateComplete:
        """Run one request and return its end.

        Raises:
            grpc.RpcError: it failed.
        """
        responses = list(self.stub.Generate(pb.GenerateRequest(**request), timeout=60))
        return responses[-1].complete

    def workers(self) -> list[pb.WorkerInfo]:
        """Return the attached workers."""
        return list(self.stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=10).workers)

    def host_of(self, worker: pb.WorkerInfo) -> str:
        """Return the name of the host on which a worker runs."""
        address = worker.data_address.rpartition(":")[0]
        (name,) = (each.name for each in self.network.hosts.values() if each.address == address)
        return name

    def stands(self, within_s: float = _STANDS_S) -> None:
        """Wait until the mesh answers."""
        deadline_s = time.monotonic() + within_s
        while True:
            try:
                self.generate(input_ids=pb.TokenIds(ids=[1]), sampling_params={"max_new_tokens": 1})
            except grpc.RpcError:
                if time.monotonic() > deadline_s:
                    raise
                time.sleep(0.05)
            else:
                return


@contextlib.contextmanager
def mesh_of_hosts(
    network: Network,
    model_path: Path,
    logs: Path,
    layers: dict[str, str],
    *,
    scheduler_flags: Sequence[str] = (),
    worker_flags: Sequence[str] = (),
) -> Iterator[MeshOfHosts]:
    """Run a scheduler on the host of this name and workers on those that layers names."""
    hosts = network.hosts
    scheduler = hosts["scheduler"]
    commands = {
        "scheduler": (
            *("chunkmesh-scheduler", f"--model-path={model_path}", f"--host={scheduler.address}"),
            *("--page-size=16", "--chunked-prefill-size=64", "--chunk-strategy=fixed"),
            *scheduler_flags,
        )
    }
    for name, those in layers.items():
        commands[name] = (
            *("stage-worker", f"--model-path={model_path}", f"--host={hosts[name].address}"),
            *(f"--layers={those}", f"--scheduler={scheduler.address}:50052", "--profile=off"),
            *("--max-total-tokens=4096", *worker_flags),
        )
    services = {
        name: ServiceOnHost(host=hosts[name], command=command, log=logs / f"{name}.log")
        for name, command in commands.items()
    }
    with contextlib.ExitStack() as stack:
        for service in services.values():
            service.start()
            stack.callback(service.kill)
        address = f"{scheduler.address}:50051"
        options = [("grpc.max_reconnect_backoff_ms", 500)]
        channel = stack.enter_context(grpc.insecure_channel(address, options=options))
        mesh = MeshOfHosts(
            network=network,
            scheduler=address,
            stub=generation_pb2_grpc.GenerationStub(channel),
            services=services,
        )
        mesh.stands()
        yield mesh
