"""A mesh whose services run on hosts of their own, as real processes."""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from tests.network_hosts import Network
from tests.service_process import ServiceProcess

_STANDS_S = 100.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeshOfHosts:
    """What a test may touch of it."""

    network: Network
    scheduler: str
    """Users' address."""
    stub: generation_pb2_grpc.GenerationStub
    services: dict[str, ServiceProcess]
    """By host; its name is that of the log, too."""

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
        name: ServiceProcess(
            command=command, log_path=logs / f"{name}.log", prepare=hosts[name].enter
        )
        for name, command in commands.items()
    }
    with contextlib.ExitStack() as stack:
        for service in services.values():
            service.start()
            stack.callback(service.close)
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
