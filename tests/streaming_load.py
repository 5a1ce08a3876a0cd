"""Clients that stream all the time, try again as clients should, and note how long they wait.

What each hears is held against the answers of an undisturbed mesh: every token once, in order.
"""

from __future__ import annotations

import contextlib
import dataclasses
import random
import time
from collections.abc import Iterator, Sequence
from typing import TypeAlias

from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.errors import ChunkMeshError
from chunkmesh.retrying import Servers
from chunkmesh.v1 import generation_pb2 as pb
from tests.client_threads import ClientThreads
from tests.eventually import eventually_blocking
from tests.random_ids import make_prompt
from tests.service_process import WAIT_S

Ids: TypeAlias = tuple[int, ...]
NEW_TOKENS = 24
_PROMPT_TOKENS = (5, 100, 300, 700)
_SHARED_TOKENS = 64
_PAUSE_S = 0.05
"""Between two requests of one client: services that start need a processor, too."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One of the requests that are sent again and again."""

    prompt: Ids
    seed: int | None
    """None asks greedily."""

    def request(self) -> pb.GenerateRequest:
        """Return it as it is sent."""
        params = pb.SamplingParams(
            temperature=0.0 if self.seed is None else 1.0,
            seed=self.seed,
            max_new_tokens=NEW_TOKENS,
            ignore_eos=True,
        )
        return pb.GenerateRequest(
            input_ids=pb.TokenIds(ids=self.prompt),
            sampling_params=params,
            stream=True,
            return_progress=True,
        )


def asks() -> tuple[Ask, ...]:
    """Return prompts short and long, half of which begin alike, greedy and seeded."""
    shared = make_prompt(_SHARED_TOKENS, 1)
    prompts = [
        tuple(shared[: length // 2] + make_prompt(length, length)) for length in _PROMPT_TOKENS
    ]
    return tuple(Ask(prompt=prompt, seed=seed) for prompt in prompts for seed in (None, 7))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """One client heard nothing new."""

    begin_s: float
    end_s: float


class StreamingLoad:
    """Owns the clients' threads and what they found."""

    def __init__(self, servers: Servers, *, num_clients: int = 4) -> None:
        """Send nothing yet."""
        self.num_ended = 0
        self.num_differing = 0
        """Whose tokens or end are not those of the undisturbed answer."""
        self.errors: list[ChunkMeshError] = []
        """One for each request that failed for good."""
        self.waits: list[Wait] = []
        """Between what a client asked for and the first of its output, and from output to output;
        those of at least 50 ms."""
        self._servers = servers
        self._expected: dict[Ask, Ids] = {}
        self._clients = ClientThreads(self._run, num_clients)

    def learn(self, wanted: Sequence[Ask]) -> dict[Ask, Ids]:
        """Ask a mesh that nothing disturbs; return what everybody must get from then on."""
        with GenerationClient(self._servers) as client:
            for ask in wanted:
                answer, _ = self._hear(client, ask)
                self._expected[ask] = answer
        return self._expected

    @contextlib.contextmanager
    def running(self) -> Iterator[StreamingLoad]:
        """Send requests while inside; on leaving, wait for the ends of those that run."""
        with self._clients.running():
            yield self

    def wait_for(self, num_more: int) -> None:
        """Wait for the ends of so many more requests."""
        wanted = self.num_ended + num_more
        eventually_blocking(
            lambda: self.num_ended >= wanted, within_s=WAIT_S, why=lambda: str(self.errors)
        )

    def longest_wait_s(self, begin_s: float, end_s: float) -> float:
        """Return the longest wait of one client that touches a time."""
        touching = [w for w in self.waits if w.begin_s < end_s and w.end_s > begin_s]
        return max((w.end_s - w.begin_s for w in touching), default=0.0)

    def _run(self, seed: int) -> None:
        chance = random.Random(seed)  # noqa: S311 -- a seeded test
        wanted = list(self._expected)
        with GenerationClient(self._servers) as client:
            while not self._clients.stop.is_set():
                ask = chance.choice(wanted)
                try:
                    answer, is_whole = self._hear(client, ask)
                except ChunkMeshError as error:
                    self.errors.append(error)
                else:
                    self.num_ended += 1
                    self.num_differing += not is_whole or answer != self._expected[ask]
                self._clients.stop.wait(_PAUSE_S)

    def _hear(self, client: GenerationClient, ask: Ask) -> tuple[Ids, bool]:
        """Run a request; return the answer, and whether its tokens came once each."""
        heard: list[int] = []
        answer: Ids = ()
        last_s = time.monotonic()
        for reply in client.generate(ask.request(), timeout_s=WAIT_S):
            if reply.HasField("progress"):
                continue
            now_s = time.monotonic()
            if now_s - last_s >= 0.05:
                self.waits.append(Wait(begin_s=last_s, end_s=now_s))
            last_s = now_s
            if reply.HasField("chunk"):
                heard += reply.chunk.token_ids
            else:
                answer = tuple(reply.complete.output_ids)
        return answer, len(answer) == NEW_TOKENS and tuple(heard) == answer
