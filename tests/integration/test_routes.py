"""Workers that die, hang, leave, come late and come back: who serves, and who waits for what."""

from __future__ import annotations

import asyncio
import contextlib
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from chunkmesh.grpc_client import channel
from chunkmesh.v1 import common_pb2, generation_pb2_grpc, stage_pb2, stage_pb2_grpc
from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import mesh
from tests.scripted_stage import Script, scripted_stages
from tests.worker_processes import WorkerProcesses, worker_processes

NOTICED_S = 5.0
"""For what takes 0.1 s, or 1.1 s of silence, on a machine that has nothing else to do."""


@contextlib.asynccontextmanager
async def traffic(mesh: WorkerProcesses) -> AsyncIterator[None]:
    """Keep two requests running while inside; those that a loss ends are followed by others."""

    async def client(stub: generation_pb2_grpc.GenerationAsyncStub, seed: int) -> None:
        params = pb.SamplingParams(max_new_tokens=64, seed=seed, ignore_eos=True)
        while True:
            request = pb.GenerateRequest(text="x" * 200, sampling_params=params, stream=True)
            try:
                async for _ in stub.Generate(request, timeout=60):
                    pass
            except grpc.aio.AioRpcError as error:
                if error.code() is not grpc.StatusCode.UNAVAILABLE:
                    raise
                await asyncio.sleep(0.05)

    async with channel(mesh.scheduler.address) as to_scheduler:
        stub = generation_pb2_grpc.GenerationStub(to_scheduler)
        clients = [asyncio.create_task(client(stub, seed)) for seed in (1, 2)]
        yield
        for each in clients:
            assert not each.done(), each.result()
            each.cancel()
        await asyncio.gather(*clients, return_exceptions=True)


async def generated(mesh: WorkerProcesses) -> int:
    """Run one request; return how many tokens it has made."""
    async with channel(mesh.scheduler.address) as to_scheduler:
        stub = generation_pb2_grpc.GenerationStub(to_scheduler)
        params = pb.SamplingParams(max_new_tokens=3, ignore_eos=True)
        request = pb.GenerateRequest(text="hello", sampling_params=params)
        responses = [each async for each in stub.Generate(request, timeout=60)]
        return responses[-1].complete.completion_tokens


@pytest.mark.timeout(400)
@pytest.mark.parametrize("transport", ["ucx", "grpc"])
async def test_o27_a_spare_takes_over_from_whom_is_killed_stopped_or_leaves(
    tiny: Path, tmp_path: Path, transport: str
) -> None:
    """The others stay as they are; who comes back is a spare, once, and disturbs nobody."""
    way = f"--transport={transport}"
    async with worker_processes(tiny, tmp_path) as mesh:
        last = mesh.start("2-3", way)
        first = mesh.start("0-1", way, f"--peer={last.data_address}")
        await mesh.until_route(first, last)
        spare = mesh.start("2-3", way, "--peer=127.0.0.1:9")
        await mesh.until_ready(spare, "spare")
        async with traffic(mesh):
            last.send(signal.SIGKILL)
            assert await mesh.until_route(first, spare) < NOTICED_S, "killed"
            newcomer = mesh.start("2-3", way)
            await mesh.until_ready(newcomer, "spare")
            spare.send(signal.SIGSTOP)
            assert await mesh.until_route(first, newcomer) < NOTICED_S, "stopped"
            epoch = max(mesh.routes)
            spare.send(signal.SIGCONT)
            await mesh.until_ready(spare, "spare")
            assert list(mesh.routes) == [epoch], "its return disturbs nobody"
            assert len(mesh.loop.workers.registry.workers) == 3, "it is there once"
            newcomer.send(signal.SIGTERM)
            assert await mesh.until_route(first, spare) < NOTICED_S, "left"
            assert await newcomer.ended() == 0
        assert await generated(mesh) == 3
    assert "it is another worker" in first.log_path.read_text(), (
        "a --peer that was replaced costs a warning"
    )
    assert "peer ignored" in spare.log_path.read_text()


async def test_two_full_routes_are_independent(tmp_path: Path) -> None:
    """What is lost on one is nothing to the other; the lost worker comes back to its survivor."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 2})
    stages = [*scripted_stages(2, Script()), *scripted_stages(2, Script())]
    async with mesh(folder, stages) as running:
        workers = running.control_loop.workers
        async with asyncio.timeout(10):
            while len(workers.routes) < 2:
                await asyncio.sleep(0.01)
        told = await running.stub.GetServerInfo(pb.GetServerInfoRequest())
        assert [route.stands for route in told.routes] == [True, True]
        assert {each.state for each in told.workers} == {pb.WORKER_STATE_SERVING}
        # The later one: routes may come to stand in another order than they were formed in.
        kept, lost = (live for _, live in sorted(workers.routes.items()))
        workers.lose(lost.workers[1].worker_id, "a test says so")
        assert list(workers.routes) == [kept.epoch]
        survivor = lost.workers[0].worker_id
        assert survivor in workers.registry.workers
        assert workers.registry.route_of(survivor) is None
        async with asyncio.timeout(10):
            while len(workers.routes) < 2:
                await asyncio.sleep(0.01)
        assert list(workers.routes) == [kept.epoch, lost.epoch + 1]
        assert workers.route(lost.epoch + 1) == list(lost.workers)
        params = pb.SamplingParams(max_new_tokens=3)
        assert (await running.generate(text="x", sampling_params=params)).completion_tokens == 3


@pytest.mark.timeout(300)
async def test_a_restart_with_nobody_to_take_over(tiny: Path, tmp_path: Path) -> None:
    """The worker ends at once and in peace; the mesh says what it lacks, and heals by itself."""
    async with worker_processes(tiny, tmp_path) as mesh:
        first, last = mesh.start("0-1"), mesh.start("2-3")
        await mesh.until_route(first, last)
        last.send(signal.SIGTERM)
        assert await last.ended() == 0
        reason = "no worker holds layers 2-3"
        assert mesh.loop.unready_reason() == reason
        told = await asyncio.to_thread(first.ready)
        assert (told["ready"], told["state"], told["reason"]) == (False, "waiting", reason)
        successor = mesh.start("2-3")
        await mesh.until_route(first, successor)
        await mesh.until_ready(first, "serving")
        assert await generated(mesh) == 3


def said_hello(data_address: str) -> stage_pb2.AttachRequest:
    """Return the hello of a worker of a model of two layers."""
    return stage_pb2.AttachRequest(
        hello=stage_pb2.Hello(
            protocol_version=1,
            incarnation="twice",
            layers=common_pb2.LayerRange(first=0, last=1),
            layer_digests=[b"\0" * 16],
            embedding_digest=b"e",
            config_digest=b"c",
            model_layers=2,
            dtype=common_pb2.DTYPE_FLOAT32,
            hidden_size=8,
            kv_bytes_per_token=16,
            kv_capacity_tokens=4096,
            data_address=data_address,
            transport="memory",
            device="cpu",
        )
    )


async def next_order(call: Any) -> stage_pb2.AttachResponse:
    """Return the next order that is no beat."""
    order: stage_pb2.AttachResponse = await call.read()
    while order.HasField("beat"):
        order = await call.read()
    return order


SPARE = stage_pb2.AttachResponse(stand_by=stage_pb2.StandBy())


async def test_o27_who_registers_twice_is_there_once(tmp_path: Path) -> None:
    """The later stream counts; the earlier one ends with a reason."""
    folder = write_bytes_folder(tmp_path / "model", config={"num_hidden_layers": 2})
    async with mesh(folder, scripted_stages(2, Script())) as running:
        registry = running.control_loop.workers.registry
        async with channel(running.internal_address) as to_scheduler:
            stub = stage_pb2_grpc.StageControlStub(to_scheduler)
            earlier, later = stub.Attach(), stub.Attach()
            await earlier.write(said_hello("memory:1"))
            assert await next_order(earlier) == SPARE, "of a mesh that serves"
            await later.write(said_hello("memory:2"))
            assert await next_order(later) == SPARE
            with pytest.raises(grpc.aio.AioRpcError, match="attached again") as ended:
                await next_order(earlier)
            assert ended.value.code() is grpc.StatusCode.UNAVAILABLE
            assert len(registry.workers) == 3
            assert registry.workers["twice"].data_address == "memory:2"
            later.cancel()
