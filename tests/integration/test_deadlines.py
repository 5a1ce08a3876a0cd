"""O13: when the client's time or the server's is over, so is the work, wherever it stands."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest

from chunkmesh.address import HostPort
from chunkmesh.grpc_client import channel
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import hicache_pb2, hicache_pb2_grpc
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from tests.bytes_tokenizer import write_bytes_folder
from tests.eventually import eventually
from tests.fault_proxy import FaultProxy
from tests.gate import Gate
from tests.mesh import Mesh, mesh
from tests.scripted_stage import Script, ScriptedStage, scripted_stages
from tests.valkey import Valkey

Call: TypeAlias = "grpc.aio.UnaryStreamCall[pb.GenerateRequest, pb.GenerateResponse]"


def folder(tmp_path: Path, num_layers: int) -> Path:
    """Write a model folder for scripted stages."""
    return write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": num_layers})


def request(name: str, max_new_tokens: int, **fields: Any) -> pb.GenerateRequest:
    """Ask for so many tokens, whatever they are."""
    params = pb.SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
    if not fields:
        fields = {"text": "x"}
    return pb.GenerateRequest(request_id=name, sampling_params=params, **fields)


async def code_of(call: Call) -> grpc.StatusCode:
    """Read a call to its end; return its status."""
    try:
        while await call.read() is not grpc.aio.EOF:
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def settled(running: Mesh) -> None:
    """Wait until nothing is left of any request, its call included."""
    await running.at_rest()
    await eventually(lambda: not len(running.open_calls))


def rows_of(stage: ScriptedStage) -> list[int]:
    """Return how many rows each microbatch sampled."""
    return [len(each.sampling) for each in stage.microbatches]


async def test_o13_the_deadline_ends_the_work(tmp_path: Path) -> None:
    """A decodes, B waits behind it, C behind B: A stops early, B never begins, C is answered."""
    stages = scripted_stages(2, Script(delay_s=0.05))
    async with mesh(folder(tmp_path, 2), stages, max_running_requests=1) as running:
        a = running.stub.Generate(request("A", 1000), timeout=0.6)
        await eventually(lambda: "A" in running.control_loop.requests)
        b = running.stub.Generate(request("B", 1000, text="bb" * 100), timeout=0.2)
        await eventually(lambda: "B" in running.control_loop.requests)
        c = running.stub.Generate(request("C", 2, text="c"), timeout=30)
        codes = await asyncio.gather(*map(code_of, (a, b, c)))
        await settled(running)
    exceeded = grpc.StatusCode.DEADLINE_EXCEEDED
    assert [exceeded, exceeded, grpc.StatusCode.OK] == codes
    lengths = [entry.num_tokens for each in stages[0].microbatches for entry in each.entries]
    assert max(lengths) < 64, "B was prefilled"
    assert sum(rows_of(stages[1])) <= 2 + 0.6 / 0.05 + 2


@pytest.mark.parametrize("num_chunks_seen", [0, 3])
async def test_the_servers_own_limit_ends_the_work(tmp_path: Path, num_chunks_seen: int) -> None:
    """O12 (b): in the midst of a prefill of ten chunks, and for one that waits behind it."""
    stages = scripted_stages(3, Script(delay_s=0.1))
    model = folder(tmp_path, 3)
    async with mesh(model, stages, max_running_requests=1, request_timeout=0.5) as running:
        ids = pb.TokenIds(ids=[65] * 640)
        calls = [running.stub.Generate(request("long", 1, input_ids=ids), timeout=30)]
        await eventually(lambda: len(stages[0].microbatches) > num_chunks_seen)
        calls.append(running.stub.Generate(request("behind", 1000), timeout=30))
        codes = await asyncio.gather(*map(code_of, calls))
        details = [await call.details() for call in calls]
        await settled(running)
    assert [grpc.StatusCode.DEADLINE_EXCEEDED] * 2 == codes
    assert all("0.5 s, the limit (--request-timeout)" in str(each) for each in details)
    chunks = [entry for each in stages[0].microbatches for entry in each.entries]
    assert num_chunks_seen < len([chunk for chunk in chunks if chunk.num_tokens == 64]) < 10


async def test_a_deadline_while_the_prompt_is_read(tmp_path: Path) -> None:
    """Nothing was submitted, so nothing is left; the thread's result is dropped."""
    model = folder(tmp_path, 1)
    async with mesh(model, scripted_stages(1, Script()), request_timeout=30.0) as running:
        text = "20 MB of text, " * 1_400_000
        call = running.stub.Generate(request("r", 1, text=text), timeout=0.1)
        assert grpc.StatusCode.DEADLINE_EXCEEDED is await code_of(call)
        await settled(running)
        assert grpc.StatusCode.OK is await code_of(running.stub.Generate(request("s", 1)))


async def test_ends_at_every_moment_leave_nothing(tmp_path: Path) -> None:
    """Deadlines that fall into each state of a request, and into each message of its stream."""
    stages = scripted_stages(2, Script(delay_s=0.002))
    async with mesh(folder(tmp_path, 2), stages, max_running_requests=2) as running:
        calls = [
            running.stub.Generate(
                request(f"r{i}", 50, input_ids=pb.TokenIds(ids=[65 + i % 9] * (1 + 7 * i))),
                timeout=0.004 * (1 + i),
            )
            for i in range(60)
        ]
        codes = await asyncio.gather(*map(code_of, calls))
        await settled(running)
        snapshot = running.control_loop.engine.snapshot()
    assert grpc.StatusCode.DEADLINE_EXCEEDED in codes
    assert (0, 0, 0) == (snapshot.num_waiting, snapshot.num_running, snapshot.num_loads)
    assert snapshot.num_pages == snapshot.num_free_pages


async def num_leases(hicache: HostPort) -> int:
    """Ask HiCache how many leases live."""
    async with channel(hicache) as link:
        stub = hicache_pb2_grpc.HiCacheStub(link)
        return (await stub.GetStats(hicache_pb2.GetStatsRequest())).num_leases


@contextlib.asynccontextmanager
async def behind_a_proxy(
    model: Path, stages: list[ScriptedStage], valkey: Valkey
) -> AsyncIterator[tuple[Mesh, FaultProxy, HostPort]]:
    """Run a mesh whose workers reach Valkey through a proxy, and HiCache directly."""
    settings = HiCacheSettings(port=0, http_port=0, redis_url=(valkey.url,))
    async with (
        FaultProxy(valkey.port).listening() as proxy,
        hicache_running(settings, ping_s=0.05) as hicache,
        mesh(
            model, stages, redis_url=proxy.url, hicache_url=hicache, enable_prefix_caching=False
        ) as running,
    ):
        yield running, proxy, hicache


async def test_o13_a_deadline_while_pages_are_loaded(tmp_path: Path, valkey: Valkey) -> None:
    """Nothing is computed, pages and the lease come back, and the next one finds its pages."""
    stages = scripted_stages(2, Script())
    ids = pb.TokenIds(ids=[65 + index % 26 for index in range(100)])
    model = folder(tmp_path, 2)
    async with behind_a_proxy(model, stages, valkey) as (running, proxy, hicache):
        engine = running.control_loop.engine
        params = pb.SamplingParams(max_new_tokens=2, ignore_eos=True)

        async def is_found() -> bool:
            answer = await running.generate(input_ids=ids, sampling_params=params)
            await settled(running)
            return answer.cached_tokens == 96

        await eventually(is_found)
        num_before = len(stages[0].microbatches)
        proxy.fault.silent = True
        call = running.stub.Generate(request("late", 2, input_ids=ids), timeout=0.7)
        await eventually(lambda: engine.snapshot().num_loads == 1)
        held = engine.snapshot()
        assert held.num_free_pages < held.num_pages
        assert 1 == await num_leases(hicache)
        assert grpc.StatusCode.DEADLINE_EXCEEDED is await code_of(call)
        await settled(running)
        left = engine.snapshot()
        assert (0, 0, left.num_pages) == (left.num_loads, left.num_running, left.num_free_pages)
        await eventually(lambda: has_none(hicache))
        assert num_before == len(stages[0].microbatches), "it was computed for nobody"
        proxy.fault.silent = False
        await eventually(is_found)
        await eventually(lambda: has_none(hicache))


async def has_none(hicache: HostPort) -> bool:
    """Whether no lease lives."""
    return await num_leases(hicache) == 0


async def test_o13_a_deadline_while_no_route_stands(tmp_path: Path) -> None:
    """Of one that ran and of one that had not begun: both end in time, and nothing is left."""
    gate = Gate()
    stages = scripted_stages(1, Script(gate=gate))
    async with mesh(
        folder(tmp_path, 1), stages, max_running_requests=1, takeover_wait=60.0
    ) as running:
        engine, workers = running.control_loop.engine, running.control_loop.workers
        calls = [running.stub.Generate(request("ran", 9), timeout=2.0)]
        await eventually(lambda: engine.snapshot().num_in_flight == 1)
        calls.append(running.stub.Generate(request("waited", 9, text="w" * 50), timeout=2.0))
        await running.has_requests(2)
        (live,) = workers.routes.values()
        workers.lose(live.workers[0].worker_id, "a test says so")
        parked = engine.snapshot()
        assert (2, 0) == (parked.num_parked, parked.num_pages)
        codes = await asyncio.gather(*map(code_of, calls))
        assert [grpc.StatusCode.DEADLINE_EXCEEDED] * 2 == codes
        assert not workers.routes, "they were parked to their ends"
        await settled(running)
        gate.open()
        await running.stands()
        assert grpc.StatusCode.OK is await code_of(running.stub.Generate(request("next", 2)))
        await settled(running)
        snapshot = engine.snapshot()
    assert snapshot.num_pages == snapshot.num_free_pages
    lengths = [entry.num_tokens for each in stages[0].microbatches for entry in each.entries]
    assert max(lengths) < 50, "it was prefilled for nobody"
