"""A mesh whose services run on hosts of their own, as real processes."""

from __future__ import annotations

import contextlib
import dataclasses
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from tests.network_hosts import Host, Network

_BIN = Path(sys.executable).parent
_STANDS_S = 60.0
_ENDS_S = 15.0


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class MeshOfHosts:
    """What a test may touch of it."""

    network: Network
    scheduler: str
    """Users' address."""
    stub: generation_pb2_grpc.GenerationStub
    processes: dict[str, subprocess.Popen[bytes]]
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
    processes: dict[str, subprocess.Popen[bytes]] = {}
    hosts = network.hosts
    scheduler = hosts["scheduler"]
    with contextlib.ExitStack() as stack:
        command = [
            *("chunkmesh-scheduler", f"--model-path={model_path}", f"--host={scheduler.address}"),
            *("--page-size=16", "--chunked-prefill-size=64", "--chunk-strategy=fixed"),
            *scheduler_flags,
        ]
        processes["scheduler"] = stack.enter_context(_running(scheduler, command, logs))
        for name, those in layers.items():
            host = hosts[name]
            command = [
                *("stage-worker", f"--model-path={model_path}", f"--host={host.address}"),
                *(f"--layers={those}", f"--scheduler={scheduler.address}:50052", "--profile=off"),
                *("--max-total-tokens=4096", *worker_flags),
            ]
            processes[name] = stack.enter_context(_running(host, command, logs))
        address = f"{scheduler.address}:50051"
        channel = stack.enter_context(grpc.insecure_channel(address))
        mesh = MeshOfHosts(
            network=network,
            scheduler=address,
            stub=generation_pb2_grpc.GenerationStub(channel),
            processes=processes,
        )
        mesh.stands()
        yield mesh


@contextlib.contextmanager
def _running(host: Host, command: Sequence[str], logs: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Run a service on a host while inside; its output goes into a file of the host's name."""
    program = [str(_BIN / command[0]), *command[1:]]
    with (
        (logs / f"{host.name}.log").open("wb") as log,
        subprocess.Popen(host.command(*program), stdout=log, stderr=subprocess.STDOUT) as process,
    ):
        try:
            yield process
        finally:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(_ENDS_S)
            except subprocess.TimeoutExpired:
                process.kill()
