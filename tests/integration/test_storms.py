"""Many clients at once, tiny requests without end, and one of a million tokens.

Figures are printed; what is asserted are bounds that hold on a busy machine.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chunkmesh.grpc_client import channel
from chunkmesh.grpc_options import CLIENT_OPTIONS
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from scheduler.request import Request
from scheduler.request_stream import RequestStream
from tests.bytes_tokenizer import write_bytes_folder
from tests.lag import loop_lag
from tests.mesh import Mesh, mesh
from tests.scripted_stage import Script, ScriptedStage, scripted_stages

NUM_AT_A_TIME = 64
MILLION = 1 << 20


def folder(tmp_path: Path, **config: int) -> Path:
    """Write a model folder for scripted stages."""
    return write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 2} | config)


def request(max_new_tokens: int = 4, text: str = "tiny") -> pb.GenerateRequest:
    """Ask for a few tokens."""
    params = pb.SamplingParams(max_new_tokens=max_new_tokens, ignore_eos=True)
    return pb.GenerateRequest(text=text, stream=True, sampling_params=params)


async def code_of(stub: Any, given: pb.GenerateRequest) -> grpc.StatusCode:
    """Run a request to its end; return its status."""
    try:
        async for _ in stub.Generate(given):
            pass
    except grpc.aio.AioRpcError as error:
        return error.code()
    return grpc.StatusCode.OK


async def run_many(running: Mesh, stages: Iterable[ScriptedStage], num_requests: int) -> None:
    """Run requests, so many at a time; all of them must end well."""
    left = iter(range(num_requests))

    async def client() -> None:
        for index in left:
            assert grpc.StatusCode.OK is await code_of(running.stub, request())
            if index % 100 == 0:
                forget_microbatches(stages)

    await asyncio.gather(*(client() for _ in range(NUM_AT_A_TIME)))


async def settled(running: Mesh, stages: Iterable[ScriptedStage]) -> None:
    """Wait until nothing is left of any request, on the stages neither."""
    await running.at_rest()
    async with asyncio.timeout(10):
        while len(running.open_calls) or any(stage.tables for stage in stages):
            await asyncio.sleep(0.01)
    forget_microbatches(stages)


def forget_microbatches(stages: Iterable[ScriptedStage]) -> None:
    """Drop what stages have noted, which is more than what is looked for."""
    for stage in stages:
        stage.microbatches.clear()


def live_objects() -> Counter[str]:
    """Count what requests are made of, and tasks."""
    gc.collect()
    kinds = {Request, RequestStream}
    counts = Counter(type(each).__name__ for each in gc.get_objects() if type(each) in kinds)
    return counts + Counter(Task=len(asyncio.all_tasks()))


def check_nothing_is_held(running: Mesh) -> None:
    """Check that every page is free, and nobody waits or runs."""
    now = running.control_loop.engine.snapshot()
    assert (0, 0, 0, 0) == (now.num_waiting, now.num_running, now.num_loads, now.num_in_flight)
    assert now.num_pages == now.num_free_pages


@pytest.mark.timeout(600)
@pytest.mark.parametrize("num_requests", [1000, pytest.param(10_000, marks=pytest.mark.slow)])
async def test_tiny_requests_leave_nothing_behind(tmp_path: Path, num_requests: int) -> None:
    """Flat memory, no task, stream, page or row too many after thousands of requests."""
    stages = scripted_stages(2, Script())
    process = psutil.Process()
    async with mesh(folder(tmp_path), stages) as running:
        await run_many(running, stages, 500)
        await settled(running, stages)
        objects, rss = live_objects(), process.memory_info().rss
        started_s = time.monotonic()
        await run_many(running, stages, num_requests)
        took_s = time.monotonic() - started_s
        await settled(running, stages)
        after, rss_after = live_objects(), process.memory_info().rss
        check_nothing_is_held(running)
    print(f"{num_requests} requests in {took_s:.1f} s: {num_requests / took_s:.0f}/s")
    print(f"RSS {rss / 2**20:.1f} -> {rss_after / 2**20:.1f} MiB; {dict(objects)} -> {dict(after)}")
    assert after["RequestStream"] <= objects["RequestStream"] + 2
    assert after["Request"] <= objects["Request"] + 2
    assert after["Task"] <= objects["Task"] + 2
    assert rss_after - rss < 8 << 20


@pytest.mark.timeout(300)
async def test_a_reconnect_storm_leaves_nothing_behind(tmp_path: Path) -> None:
    """Clients connect, ask and vanish, again and again, in each state of a request."""
    stages = scripted_stages(2, Script(delay_s=0.001))
    process = psutil.Process()
    async with mesh(folder(tmp_path), stages, max_running_requests=8) as running:

        async def come_and_go(index: int) -> None:
            link = grpc.aio.insecure_channel(str(running.address), options=CLIENT_OPTIONS)
            calls = [
                generation_pb2_grpc.GenerationStub(link).Generate(request(500, "x" * 200))
                for _ in range(4)
            ]
            if index % 2:
                await calls[0].read()
            await asyncio.sleep(0.002 * (index % 7))
            await link.close()

        async def storm(num_clients: int) -> None:
            for first in range(0, num_clients, 25):
                await asyncio.gather(*map(come_and_go, range(first, first + 25)))
                forget_microbatches(stages)
            await settled(running, stages)

        await storm(100)
        num_files = process.num_fds()
        objects, rss = live_objects(), process.memory_info().rss
        await storm(300)
        after, rss_after = live_objects(), process.memory_info().rss
        check_nothing_is_held(running)
        assert grpc.StatusCode.OK is await code_of(running.stub, request())
    print(f"RSS {rss / 2**20:.1f} -> {rss_after / 2**20:.1f} MiB; {dict(objects)} -> {dict(after)}")
    assert after["Task"] <= objects["Task"] + 2
    assert after["RequestStream"] <= objects["RequestStream"] + 2
    assert process.num_fds() <= num_files + 4
    assert rss_after - rss < 16 << 20


@pytest.mark.alone
async def test_a_flood_is_refused_at_the_door_and_health_is_told(tmp_path: Path) -> None:
    """Two thousand at once where 24 may wait and run: told to come again, nobody else harmed."""
    stages = scripted_stages(2, Script(delay_s=0.001))
    limits: dict[str, Any] = {"max_running_requests": 8, "max_queued_requests": 16}
    async with mesh(folder(tmp_path), stages, **limits) as running:
        async with channel(running.address) as link:
            flood = [
                asyncio.create_task(code_of(generation_pb2_grpc.GenerationStub(link), request()))
                for _ in range(2000)
            ]
            health: Any = health_pb2_grpc.HealthStub(running.channel)
            while not all(task.done() for task in flood):
                await health.Check(health_pb2.HealthCheckRequest(), timeout=10)
                await asyncio.sleep(0.02)
            codes = Counter([await task for task in flood])
        await settled(running, stages)
        check_nothing_is_held(running)
        assert grpc.StatusCode.OK is await code_of(running.stub, request())
    print(dict(codes))
    assert {grpc.StatusCode.OK, grpc.StatusCode.RESOURCE_EXHAUSTED} == set(codes)
    assert codes[grpc.StatusCode.OK] >= 24


async def test_connections_are_bounded(tmp_path: Path) -> None:
    """More are closed at once; those that stand, and the workers' port, are not touched."""
    async with mesh(folder(tmp_path), scripted_stages(2, Script()), max_connections=2) as running:
        assert grpc.StatusCode.OK is await code_of(running.stub, request())
        codes = []
        links = [grpc.aio.insecure_channel(str(running.address)) for _ in range(3)]
        for index, link in enumerate(links):
            other = grpc.aio.insecure_channel(
                str(running.address), options=[*CLIENT_OPTIONS, ("test.index", index)]
            )
            codes.append(await code_of(generation_pb2_grpc.GenerationStub(other), request()))
            await link.close()
            links[index] = other
        assert grpc.StatusCode.OK is await code_of(running.stub, request())
        for link in links:
            await link.close()
    unavailable = grpc.StatusCode.UNAVAILABLE
    assert [grpc.StatusCode.OK, unavailable, unavailable] == codes


@pytest.mark.alone
@pytest.mark.timeout(300)
@pytest.mark.parametrize("field", ["input_ids", "input_ids_le"])
async def test_a_million_tokens_do_not_hold_the_loop(tmp_path: Path, field: str) -> None:
    """What the door itself takes for them, in time and memory, while everybody else goes on."""
    model = folder(tmp_path, vocab_size=152_064, max_position_embeddings=2 * MILLION)
    process = psutil.Process()
    rows = np.full(MILLION, 151_935, dtype="<u4")
    given: dict[str, Any] = {
        "input_ids": pb.TokenIds(ids=rows.tolist()),
        "input_ids_le": rows.tobytes(),
    }
    params = pb.SamplingParams(max_new_tokens=1)
    async with mesh(
        model,
        scripted_stages(2, Script()),
        kv_capacity_tokens=2 * MILLION,
        page_size=64,
        chunked_prefill_size=1 << 15,
    ) as running:
        message = pb.GenerateRequest(**{field: given[field]}, sampling_params=params)
        gc.collect()
        gc.freeze()  # What tests import takes the collector longer than the scheduler lives.
        rss = process.memory_info().rss
        async with loop_lag() as lag:
            started_s = time.monotonic()
            *_, last = [each async for each in running.stub.Generate(message)]
            took_s = time.monotonic() - started_s
        gc.unfreeze()
        await running.at_rest()
        rss_after = process.memory_info().rss
        check_nothing_is_held(running)
    print(
        f"{field}: {took_s:.2f} s in all, TTFT {last.complete.ttft_ms:.0f} ms, loop held for "
        f"{1000 * lag.worst_s:.0f} ms at most, RSS {rss >> 20} -> {rss_after >> 20} MiB"
    )
    assert MILLION == last.complete.prompt_tokens
    assert lag.worst_s < 0.25
