"""A scheduler in this process and three worker processes, to be killed under running requests."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

from grpc_health.v1 import health_pb2, health_pb2_grpc

from chunkmesh.grpc_client import channel
from chunkmesh.v1 import common_pb2, generation_pb2_grpc
from chunkmesh.v1 import generation_pb2 as pb
from hicache.server import running as running_hicache
from hicache.settings import HiCacheSettings
from scheduler.control_loop import ControlLoop
from tests.eventually import eventually
from tests.valkey import Valkey
from tests.worker_processes import WorkerProcesses, worker_processes

LAYERS = ("0:1", "1:2", "2:4")
PROMPT_TOKENS = 1000
NEW_TOKENS = 30
_SAMPLED = {"temperature": 1.0, "seed": 7, "ignore_eos": True, "max_new_tokens": NEW_TOKENS}
PARAMS: tuple[dict[str, Any], ...] = (
    _SAMPLED | {"temperature": 0.0},
    _SAMPLED,
    _SAMPLED | {"n": 2, "seed": 9, "presence_penalty": 0.5},
)


@dataclasses.dataclass(slots=True)
class Heard:
    """What a client has of one request."""

    ids: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    text: dict[int, str] = dataclasses.field(default_factory=dict)
    logprobs: list[common_pb2.TokenLogprobs] = dataclasses.field(default_factory=list)
    """Of outputs, in parts."""
    processed: list[int] = dataclasses.field(default_factory=list)
    ends: dict[int, pb.GenerateComplete] = dataclasses.field(default_factory=dict)

    def check(self, num_outputs: int) -> None:
        """Every token came once, and the end sums up what came."""
        assert self.processed == sorted(set(self.processed))
        assert sorted(self.ends) == list(range(num_outputs))
        for index, end in self.ends.items():
            assert self.ids[index] == list(end.output_ids)
            assert self.text[index] == end.text


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LossMesh:
    """A scheduler in this process and workers beside it."""

    loop: ControlLoop
    stub: generation_pb2_grpc.GenerationAsyncStub
    health: Any
    workers: WorkerProcesses
    worker_flags: tuple[str, ...]

    def start(self, *layers: str) -> None:
        """Start a worker for each range of layers; they attach in a moment."""
        for each in layers:
            self.workers.start(each, *self.worker_flags)

    async def attached(self, num_workers: int, num_routes: int = 1) -> None:
        """Wait for so many workers and routes."""
        workers = self.loop.workers
        wanted = (num_workers, num_routes)
        await eventually(
            lambda: wanted == (len(workers.registry.workers), len(workers.routes)), within_s=30
        )

    async def at_rest(self) -> None:
        """Wait until nothing is left of any request."""
        await eventually(lambda: self.loop.engine.is_idle() and not len(self.loop.requests))

    async def serves(self) -> bool:
        """Ask health of the users' port and of its service, which agree."""
        answers = [
            await self.health.Check(health_pb2.HealthCheckRequest(service=name), timeout=10)
            for name in ("", "chunkmesh.v1.Generation")
        ]
        (status,) = {answer.status for answer in answers}
        return bool(status == health_pb2.HealthCheckResponse.SERVING)

    def kill(self, stage: int, route: int = 0) -> None:
        """Kill the worker of a stage of the route that stands longest, or a later one."""
        live = list(self.loop.workers.routes.values())[route]
        self.workers.at(live.workers[stage].data_address).send(signal.SIGKILL)

    async def hear(
        self, prompt: list[int], params: dict[str, Any], on_news: Callable[[Heard], None]
    ) -> Heard:
        """Run a request; on_news looks at what there is after each message."""
        heard = Heard()
        request = pb.GenerateRequest(
            input_ids=pb.TokenIds(ids=prompt),
            sampling_params=pb.SamplingParams(**params),
            stream=True,
            return_progress=True,
        )
        async for response in self.stub.Generate(request, timeout=30):
            match response.WhichOneof("event"):
                case "progress":
                    heard.processed.append(response.progress.processed)
                case "chunk":
                    chunk = response.chunk
                    heard.ids.setdefault(chunk.index, []).extend(chunk.token_ids)
                    heard.text[chunk.index] = heard.text.get(chunk.index, "") + chunk.text
                    if chunk.HasField("logprobs"):
                        heard.logprobs.append(chunk.logprobs)
                case "complete":
                    heard.ends[response.complete.index] = response.complete
            on_news(heard)
        heard.check(params.get("n", 1))
        return heard

    async def all_answers(
        self, prompt: list[int], on_news: Callable[[Heard], None] = lambda _heard: None
    ) -> list[dict[int, list[int]]]:
        """Return the ids of all kinds of requests at once, each behind a token of its own."""
        answers = await asyncio.gather(
            *(self.hear([index, *prompt], params, on_news) for index, params in enumerate(PARAMS))
        )
        num_tokens = {len(ids) for heard in answers for ids in heard.ids.values()}
        assert {NEW_TOKENS} == num_tokens
        return [heard.ids for heard in answers]

    async def recovered(self, num_outputs: int) -> None:
        """Wait until so many outputs have lost a route that they ran on, since the start."""
        async with asyncio.timeout(10):
            while self.loop.engine.recoveries.counts.outputs < num_outputs:
                await asyncio.sleep(0.001)


@contextlib.asynccontextmanager
async def loss_mesh(
    model_path: Path,
    folder: Path,
    valkey: Valkey | None,
    *,
    worker_redis_url: str = "",
    **settings: Any,
) -> AsyncIterator[LossMesh]:
    """Run a scheduler, and HiCache if there is a Valkey; settings are the scheduler's.

    worker_redis_url is where workers reach Valkey, if not directly.
    """
    async with contextlib.AsyncExitStack() as stack:
        flags: tuple[str, ...] = ()
        hicache = None
        if valkey is not None:
            of_hicache = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
            hicache = await stack.enter_async_context(running_hicache(of_hicache))
            flags = (f"--redis-url={worker_redis_url or valkey.url}",)
        given = {
            "load_min_tokens": 0,
            "enable_prefix_caching": valkey is not None,
            "hicache_url": hicache,
            **settings,
        }
        workers = await stack.enter_async_context(worker_processes(model_path, folder, **given))
        link = await stack.enter_async_context(channel(workers.scheduler.address))
        yield LossMesh(
            loop=workers.loop,
            stub=generation_pb2_grpc.GenerationStub(link),
            health=health_pb2_grpc.HealthStub(link),
            workers=workers,
            worker_flags=flags,
        )


def make_prompt(seed: int) -> list[int]:
    """Return a prompt that begins like no other."""
    return [seed % 256] + [(seed * index) % 251 for index in range(1, PROMPT_TOKENS)]


class KillOnce:
    """Kills a stage as soon as somebody has heard enough."""

    def __init__(self, mesh: LossMesh, stage: int, moment: str) -> None:
        self.is_done = False
        self._mesh, self._stage, self._moment = mesh, stage, moment

    def __call__(self, heard: Heard) -> None:
        """Kill in the middle of a prompt, or of an output."""
        num_ids = len(heard.ids.get(0, ()))
        is_time = (
            bool(heard.processed) and 200 < heard.processed[-1] < PROMPT_TOKENS
            if self._moment == "prefill"
            else num_ids >= 10
        )
        if is_time and not self.is_done:
            self.is_done = True
            self._mesh.kill(self._stage)
