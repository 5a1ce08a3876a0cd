"""Random prompts for a mesh that runs, cut as the client wants."""

from __future__ import annotations

import dataclasses
import threading
import time

import numpy as np

from chunkmesh.address import HostPort
from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.cli.local_mesh import LocalMesh
from chunkmesh.v1 import generation_pb2 as pb


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How prompts are cut."""

    name: str
    chunk_tokens: tuple[int, ...]
    """Empty leaves it to the scheduler."""


class Bench:
    """One mesh and the requests that are sent to it."""

    def __init__(self, mesh: LocalMesh, vocab_size: int, prompt_tokens: int) -> None:
        self._address = HostPort.parse(mesh.scheduler_address)
        self._vocab_size = vocab_size
        self._prompt_tokens = prompt_tokens
        self._random = np.random.default_rng()

    def info(self) -> pb.GetServerInfoResponse:
        """Return the state of the mesh."""
        with GenerationClient(self._address) as client:
            return client.server_info()

    def prompt(self, num_tokens: int | None = None) -> bytes:
        """Return a new random prompt, as bytes of ids."""
        size = num_tokens or self._prompt_tokens
        return self._random.integers(0, self._vocab_size, size, dtype=np.uint32).tobytes()

    def complete(
        self, prompt: bytes, plan: Plan, *, new_tokens: int = 1, timeline: bool = False
    ) -> pb.GenerateComplete:
        """Run one greedy request."""
        request = pb.GenerateRequest(
            input_ids_le=prompt,
            sampling_params=pb.SamplingParams(
                temperature=0, max_new_tokens=new_tokens, ignore_eos=True
            ),
            chunk_tokens=plan.chunk_tokens,
            return_timeline=timeline,
        )
        with GenerationClient(self._address) as client:
            *_, last = client.generate(request)
        assert last.complete.cached_tokens == 0, "a bench prompt was cached"
        return last.complete

    def in_row_s(self, plan: Plan, count: int) -> float:
        """Return the time that prompts take which are all there at once."""
        prompts = [self.prompt() for _ in range(count)]
        threads = [threading.Thread(target=self.complete, args=(each, plan)) for each in prompts]
        begun_s = time.monotonic()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return time.monotonic() - begun_s
