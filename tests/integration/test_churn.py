"""Twenty workers that come, go and die at random while clients are served: no answer differs."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import random
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from chunkmesh.grpc_client import channel
from chunkmesh.kv_store import KvStore
from chunkmesh.transports.create import create
from chunkmesh.transports.memory import MemoryNetwork
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from hicache.server import running as running_hicache
from hicache.settings import HiCacheSettings
from scheduler.serve import RunningScheduler, running
from scheduler.settings import SchedulerSettings
from stage_worker.host_pages import HostPages
from stage_worker.worker import Capacity, Worker
from tests.bytes_tokenizer import write_bytes_folder
from tests.context_stage import ContextStage, expected_ids
from tests.eventually import eventually
from tests.valkey import Valkey

LAYERS = 4
REPLICAS = 5
_KV_TOKENS = 2048
_NUM_CLIENTS, _NUM_REQUESTS = 6, 8
_FAMILIES = tuple(
    bytes((7 * family + 3 * index) % 250 for index in range(300)) for family in (1, 2)
)
"""Beginnings that prompts share."""


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class _Replica:
    """One worker that runs."""

    layer: int
    worker: Worker
    task: asyncio.Task[None]


class _Churn:
    """Owns the workers."""

    def __init__(self, scheduler: RunningScheduler, rng: random.Random, redis_url: str) -> None:
        """Begin without any; without a Redis nothing is stored."""
        self.met: Counter[str] = Counter()
        self._scheduler, self._rng, self._redis_url = scheduler, rng, redis_url
        self._network = MemoryNetwork()
        self._replicas: list[_Replica] = []
        self._num_started = 0
        self._ended: list[asyncio.Task[None]] = []

    def start(self, layer: int) -> None:
        """Start one more worker."""
        stage = ContextStage(layer, LAYERS)
        self._num_started += 1
        worker = Worker(
            stage=stage,
            transport=create("memory", f"memory:{self._num_started}", network=self._network),
            stores=[KvStore(self._redis_url)] if self._redis_url else [],
            capacity=Capacity(kv_tokens=_KV_TOKENS, host=HostPages(4 * self._rng.choice((0, 512)))),
            peer=None,
            on_ready=lambda _ready: None,
        )
        task = asyncio.create_task(worker.run([self._scheduler.internal_address]))
        self._replicas.append(_Replica(layer=layer, worker=worker, task=task))

    async def run(self) -> None:
        """Let workers come and go, until cancelled."""
        while True:
            await asyncio.sleep(self._rng.uniform(0.0, 0.3))
            layer = self._rng.randrange(LAYERS)
            mine = [each for each in self._replicas if each.layer == layer]
            wish = self._rng.choice(("start", "kill", "leave", "kill two", "fence"))
            if len(mine) < REPLICAS and (wish == "start" or len(mine) < 2):
                self.start(layer)
            elif wish == "fence":
                self._fence()
            else:
                for replica in self._rng.sample(self._replicas, 2 if wish == "kill two" else 1):
                    self._end(replica, announces=wish == "leave")
            self.met[wish] += 1

    async def end(self) -> None:
        """End all."""
        for replica in list(self._replicas):
            self._end(replica, announces=False)
        await asyncio.gather(*self._ended, return_exceptions=True)

    def check(self) -> None:
        """No worker may have failed by itself."""
        for task in (*self._ended, *(each.task for each in self._replicas)):
            if task.done() and not task.cancelled():
                assert task.exception() is None, task.exception()

    def _end(self, replica: _Replica, *, announces: bool) -> None:
        self._replicas.remove(replica)
        self._ended.append(replica.task)
        if announces:
            self._ended.append(asyncio.create_task(self._leave(replica)))
        else:
            replica.task.cancel()

    async def _leave(self, replica: _Replica) -> None:
        async with asyncio.timeout(5):
            await replica.worker.leave()
        replica.task.cancel()

    def _fence(self) -> None:
        """Give up a worker that may come back, as good as new."""
        workers = self._scheduler.control_loop.workers
        if workers.registry.workers:
            workers.lose(
                self._rng.choice(list(workers.registry.workers)), "a test says so", "fenced"
            )


@dataclasses.dataclass(slots=True, kw_only=True)
class _Client:
    """Sends one request after the other and compares each answer."""

    stub: generation_pb2_grpc.GenerationAsyncStub
    rng: random.Random
    met: Counter[str]

    async def run(self, num_requests: int) -> None:
        """Send so many; one that never began is sent again."""
        for _ in range(num_requests):
            prompt = list(self.rng.choice(_FAMILIES)[: self.rng.randrange(300)])
            prompt += [self.rng.randrange(250) for _ in range(self.rng.randint(1, 40))]
            params = pb.SamplingParams(
                temperature=0,
                seed=self.rng.randrange(1000),
                n=self.rng.choice((1, 1, 2, 4)),
                max_new_tokens=self.rng.randint(1, 40),
                ignore_eos=True,
                presence_penalty=self.rng.choice((0.0, 0.5)),
            )
            while not await self._ask(prompt, params):
                self.met["asked again"] += 1
                await asyncio.sleep(0.1)

    async def _ask(self, prompt: list[int], params: pb.SamplingParams) -> bool:
        """Compare one answer; False if there was none because nobody could serve."""
        ids: dict[int, list[int]] = {index: [] for index in range(params.n)}
        ends: dict[int, pb.GenerateComplete] = {}
        processed = [0]
        request = pb.GenerateRequest(
            input_ids=pb.TokenIds(ids=prompt),
            sampling_params=params,
            stream=True,
            return_progress=True,
        )
        try:
            async for response in self.stub.Generate(request, timeout=60):
                match response.WhichOneof("event"):
                    case "progress":
                        processed.append(response.progress.processed)
                    case "chunk":
                        ids[response.chunk.index] += response.chunk.token_ids
                    case "complete":
                        ends[response.complete.index] = response.complete
        except grpc.aio.AioRpcError as error:
            if error.code() is not grpc.StatusCode.UNAVAILABLE:
                raise
            return False
        assert processed == sorted(set(processed))
        for child, told in ids.items():
            assert list(ends[child].output_ids) == told
            assert told == expected_ids(
                prompt,
                params.max_new_tokens,
                model_layers=LAYERS,
                seed=params.seed,
                child=child,
                has_penalties=params.presence_penalty > 0,
            )
        self.met["answers"] += 1
        return True


@contextlib.asynccontextmanager
async def _scheduler(folder: Path, valkey: Valkey | None) -> AsyncIterator[RunningScheduler]:
    """Run a scheduler, and HiCache if there is a Valkey."""
    async with contextlib.AsyncExitStack() as stack:
        hicache = None
        if valkey is not None:
            cache = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
            hicache = await stack.enter_async_context(running_hicache(cache))
        settings = SchedulerSettings(
            model_path=folder,
            port=0,
            internal_port=0,
            http_port=0,
            page_size=16,
            chunked_prefill_size=64,
            load_min_tokens=0,
            drain_timeout=5.0,
            takeover_wait=5.0,
            hicache_url=hicache,
            enable_prefix_caching=True,
        )
        yield await stack.enter_async_context(running(settings))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "hicache"])
async def test_o27_workers_come_and_go_at_random(
    tmp_path: Path, request: pytest.FixtureRequest, *, cached: bool
) -> None:
    """Every answer is the one of an undisturbed mesh, and nothing is left behind."""
    valkey: Valkey | None = request.getfixturevalue("valkey") if cached else None
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": LAYERS})
    rng = random.Random(int(cached))  # noqa: S311 - a fixed order, not a secret
    async with _scheduler(folder, valkey) as scheduler:
        churn = _Churn(scheduler, rng, valkey.url if valkey else "")
        for layer in range(LAYERS):
            for _ in range(3):
                churn.start(layer)
        loop = scheduler.control_loop
        await eventually(lambda: bool(loop.workers.routes))
        met: Counter[str] = Counter()
        async with channel(scheduler.address) as to_scheduler:
            stub = generation_pb2_grpc.GenerationStub(to_scheduler)
            running_churn = asyncio.create_task(churn.run())
            async with asyncio.TaskGroup() as clients:
                for index in range(_NUM_CLIENTS):
                    client = _Client(stub=stub, rng=random.Random(index), met=met)  # noqa: S311
                    clients.create_task(client.run(_NUM_REQUESTS))
        running_churn.cancel()
        await asyncio.gather(running_churn, return_exceptions=True)
        await eventually(lambda: loop.engine.is_idle() and not len(loop.requests))
        await churn.end()
        churn.check()
    print(dict(churn.met), dict(met), loop.engine.recoveries.counts)
    assert met["answers"] == _NUM_REQUESTS * _NUM_CLIENTS
    assert loop.engine.recoveries.counts.outputs > 10
