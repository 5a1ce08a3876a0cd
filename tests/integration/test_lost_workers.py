"""Workers that are killed under running requests: a pause, no token twice, the same ids."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from prometheus_client import REGISTRY

from chunkmesh.errors import StageUnavailable
from chunkmesh.grpc_client import channel
from chunkmesh.status import from_rpc_error
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from hicache.server import running as running_hicache
from hicache.settings import HiCacheSettings
from scheduler.control_loop import ControlLoop
from tests.eventually import eventually
from tests.valkey import Valkey
from tests.worker_processes import WorkerProcesses, worker_processes

_LAYERS = ("0:1", "1:2", "2:4")
_PROMPT_TOKENS = 1000
_NEW_TOKENS = 30
SILENCE_S = 1.0
"""What --worker-timeout is by default."""
_SAMPLED = {"temperature": 1.0, "seed": 7, "ignore_eos": True, "max_new_tokens": _NEW_TOKENS}
_KILLS = {
    False: ((0, "prefill"), (1, "decode"), (2, "prefill")),
    True: ((0, "decode"), (1, "prefill"), (2, "decode")),
}
"""Stages and moments, without and with HiCache."""
_PARAMS: tuple[dict[str, Any], ...] = (
    _SAMPLED | {"temperature": 0.0},
    _SAMPLED,
    _SAMPLED | {"n": 2, "seed": 9, "presence_penalty": 0.5},
)


@dataclasses.dataclass(slots=True)
class _Heard:
    """What a client has of one request."""

    ids: dict[int, list[int]] = dataclasses.field(default_factory=dict)
    text: dict[int, str] = dataclasses.field(default_factory=dict)
    processed: list[int] = dataclasses.field(default_factory=list)
    ends: dict[int, pb.GenerateComplete] = dataclasses.field(default_factory=dict)

    def check(self, num_outputs: int) -> None:
        """Every token came once, and the end sums up what came."""
        assert self.processed == sorted(set(self.processed))
        assert sorted(self.ends) == list(range(num_outputs))
        for index, end in self.ends.items():
            assert self.ids[index] == list(end.output_ids)
            assert self.text[index] == end.text
            assert len(self.ids[index]) == _NEW_TOKENS


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Mesh:
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
        self, prompt: list[int], params: dict[str, Any], on_news: Callable[[_Heard], None]
    ) -> _Heard:
        """Run a request; on_news looks at what there is after each message."""
        heard = _Heard()
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
                case "complete":
                    heard.ends[response.complete.index] = response.complete
            on_news(heard)
        heard.check(params.get("n", 1))
        return heard

    async def all_answers(
        self, prompt: list[int], on_news: Callable[[_Heard], None] = lambda _heard: None
    ) -> list[dict[int, list[int]]]:
        """Return the ids of all kinds of requests at once, each behind a token of its own."""
        answers = await asyncio.gather(
            *(self.hear([index, *prompt], params, on_news) for index, params in enumerate(_PARAMS))
        )
        return [heard.ids for heard in answers]


@contextlib.asynccontextmanager
async def _mesh(model_path: Path, folder: Path, valkey: Valkey | None) -> AsyncIterator[_Mesh]:
    """Run a scheduler, and HiCache if there is a Valkey."""
    async with contextlib.AsyncExitStack() as stack:
        flags: tuple[str, ...] = ()
        hicache = None
        if valkey is not None:
            settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
            hicache = await stack.enter_async_context(running_hicache(settings))
            flags = (f"--redis-url={valkey.url}",)
        workers = await stack.enter_async_context(
            worker_processes(
                model_path,
                folder,
                load_min_tokens=0,
                hicache_url=hicache,
                enable_prefix_caching=valkey is not None,
            )
        )
        link = await stack.enter_async_context(channel(workers.scheduler.address))
        yield _Mesh(
            loop=workers.loop,
            stub=generation_pb2_grpc.GenerationStub(link),
            health=health_pb2_grpc.HealthStub(link),
            workers=workers,
            worker_flags=flags,
        )


def _prompt(seed: int) -> list[int]:
    """Return a prompt that begins like no other."""
    return [seed % 256] + [(seed * index) % 251 for index in range(1, _PROMPT_TOKENS)]


def _recovery_s() -> float:
    """Return the seconds of all recoveries so far."""
    return REGISTRY.get_sample_value("chunkmesh_recovery_seconds_sum") or 0.0


class _Once:
    """Kills a stage as soon as somebody has heard enough."""

    def __init__(self, mesh: _Mesh, stage: int, moment: str) -> None:
        self.is_done = False
        self._mesh, self._stage, self._moment = mesh, stage, moment

    def __call__(self, heard: _Heard) -> None:
        """Kill in the middle of a prompt, or of an output."""
        num_ids = len(heard.ids.get(0, ()))
        is_time = (
            bool(heard.processed) and 200 < heard.processed[-1] < _PROMPT_TOKENS
            if self._moment == "prefill"
            else num_ids >= 10
        )
        if is_time and not self.is_done:
            self.is_done = True
            self._mesh.kill(self._stage)


@pytest.mark.parametrize("cached", [False, True], ids=["no cache", "hicache"])
async def test_o27_a_spare_takes_over(
    tiny: Path, tmp_path: Path, request: pytest.FixtureRequest, *, cached: bool
) -> None:
    """Stages are killed in prefill and in decode; no answer differs, no token comes twice."""
    valkey: Valkey | None = request.getfixturevalue("valkey") if cached else None
    async with _mesh(tiny, tmp_path, valkey) as mesh:
        mesh.start(*_LAYERS)
        await mesh.attached(3)
        for seed, (stage, moment) in enumerate(_KILLS[cached], start=3):
            mesh.start(_LAYERS[stage])
            await mesh.attached(4)
            before_s, counts = _recovery_s(), mesh.loop.engine.recoveries.counts.outputs
            kill = _Once(mesh, stage, moment)
            disturbed = await mesh.all_answers(_prompt(seed), kill)
            assert kill.is_done
            await mesh.at_rest()
            assert mesh.loop.engine.recoveries.counts.outputs > counts
            await asyncio.sleep(0.15)
            took_s, cache = _recovery_s() - before_s, mesh.loop.engine.snapshot().cache
            hits = cache.device_hit_tokens, cache.redis_hit_tokens
            print(f"stage {stage} in {moment}: recovered in {took_s:.3f} s, hits so far {hits}")
            await mesh.attached(3)
            assert disturbed == await mesh.all_answers(_prompt(seed))
            await mesh.at_rest()


@pytest.mark.alone
async def test_o27_nobody_takes_over_until_somebody_comes(tiny: Path, tmp_path: Path) -> None:
    """Clients hear within 2 s that and when to try again; the mesh heals by itself.

    With a second route nothing of that happens: what ran on the lost one goes on there, and the
    others do not notice.
    """
    async with _mesh(tiny, tmp_path, None) as mesh:
        mesh.start(*_LAYERS)
        await mesh.attached(3)
        expected = await mesh.all_answers(_prompt(2))
        killed_s: list[float] = []

        def kill(heard: _Heard) -> None:
            if len(heard.ids.get(0, ())) >= 10 and not killed_s:
                killed_s.append(time.monotonic())
                mesh.kill(1)

        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await mesh.hear(_prompt(2), _PARAMS[0], kill)
        assert time.monotonic() - killed_s[0] < 2.0
        _check_unavailable(failed.value)
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.hear(_prompt(2), _PARAMS[0], kill)
        _check_unavailable(refused.value)
        await mesh.at_rest()
        mesh.start(_LAYERS[1])
        await mesh.attached(3)
        assert expected == await mesh.all_answers(_prompt(2))

        mesh.start(*_LAYERS)
        await mesh.attached(6, num_routes=2)
        once = _Once(mesh, 2, "decode")
        assert expected == await mesh.all_answers(_prompt(2), once)
        assert once.is_done
        counts = mesh.loop.engine.recoveries.counts
        assert 0 < counts.outputs < 5 + 4
        assert len(mesh.loop.workers.routes) == 1
        await mesh.at_rest()


async def test_o27_a_stopped_worker_without_a_spare_is_waited_for_by_nobody(
    tiny: Path, tmp_path: Path
) -> None:
    """Both streams end within its silence and the wait; awake it serves, the others as they were.

    Health and new requests say meanwhile that nobody serves.
    """
    async with _mesh(tiny, tmp_path, None) as mesh:
        mesh.start(*_LAYERS)
        await mesh.attached(3)
        expected = await mesh.all_answers(_prompt(2))
        (live,) = mesh.loop.workers.routes.values()
        stopped = mesh.workers.at(live.workers[1].data_address)
        stopped_s: list[float] = []

        def stop(heard: _Heard) -> None:
            if len(heard.ids.get(0, ())) >= 10 and not stopped_s:
                stopped_s.append(time.monotonic())
                stopped.send(signal.SIGSTOP)

        ends = await asyncio.gather(
            *(mesh.hear(_prompt(2), params, stop) for params in _PARAMS[:2]), return_exceptions=True
        )
        assert time.monotonic() - stopped_s[0] < SILENCE_S + 2.0
        for end in ends:
            assert isinstance(end, grpc.aio.AioRpcError)
            _check_unavailable(end)
        assert not await mesh.serves()
        with pytest.raises(grpc.aio.AioRpcError) as refused:
            await mesh.hear(_prompt(2), _PARAMS[0], stop)
        _check_unavailable(refused.value)
        await mesh.at_rest()
        stopped.send(signal.SIGCONT)
        await mesh.attached(3)
        assert await mesh.serves()
        assert expected == await mesh.all_answers(_prompt(2))
        await mesh.at_rest()
        snapshot = mesh.loop.engine.snapshot()
        assert snapshot.num_pages == snapshot.num_free_pages


def _check_unavailable(error: grpc.aio.AioRpcError) -> None:
    """The status says that trying again may help, and when."""
    assert error.code() is grpc.StatusCode.UNAVAILABLE
    told = from_rpc_error(error)
    assert isinstance(told, StageUnavailable)
    assert told.retry_after_s
