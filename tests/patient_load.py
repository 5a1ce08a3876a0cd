"""Clients that send one request after the other, and try each again as clients should."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.errors import ChunkMeshError
from chunkmesh.retrying import Servers
from chunkmesh.v1 import generation_pb2 as pb
from tests.service_process import WAIT_S


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
