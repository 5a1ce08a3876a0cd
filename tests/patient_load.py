"""Clients that send one request after the other, and try each again as clients should."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.errors import ChunkMeshError
from chunkmesh.retrying import Servers
from chunkmesh.v1 import generation_pb2 as pb
from tests.client_threads import ClientThreads
from tests.eventually import eventually_blocking
from tests.service_process import WAIT_S


class Load:
    """Clients that send one request after the other, and try each again as clients should."""

    def __init__(self, servers: Servers, num_clients: int = 3) -> None:
        """Send nothing yet."""
        self.outputs: list[tuple[int, ...]] = []
        """Of the requests that have ended, in the order of their ends."""
        self.errors: list[ChunkMeshError] = []
        self._servers = servers
        self._clients = ClientThreads(self._run, num_clients)

    @contextlib.contextmanager
    def running(self) -> Iterator[Load]:
        """Send requests while inside; on leaving, wait for the ends of those that run."""
        with self._clients.running():
            yield self

    def wait_for(self, num_more: int) -> None:
        """Wait for the ends of so many more requests."""
        wanted = len(self.outputs) + num_more
        eventually_blocking(
            lambda: len(self.outputs) >= wanted, within_s=WAIT_S, why=lambda: str(self.errors)
        )

    def _run(self, _number: int) -> None:
        with GenerationClient(self._servers) as client:
            while not self._clients.stop.is_set():
                try:
                    self.outputs.append(generated(client))
                except ChunkMeshError as error:
                    self.errors.append(error)


def generated(client: GenerationClient) -> tuple[int, ...]:
    """Run a request whose tokens come all at once; return its output."""
    params = pb.SamplingParams(temperature=0, max_new_tokens=8, ignore_eos=True)
    request = pb.GenerateRequest(text="What is a mesh?", sampling_params=params)
    return tuple(list(client.generate(request))[-1].complete.output_ids)
