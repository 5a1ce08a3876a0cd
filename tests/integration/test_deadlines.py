"""O13: when the client's time or the server's is over, so is the work, wherever it stands."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any, TypeAlias

import grpc
import pytest

from chunkmesh.v1 import generation_pb2 as pb
from tests.bytes_tokenizer import write_bytes_folder
from tests.eventually import eventually
from tests.mesh import Mesh, mesh
from tests.scripted_stage import Script, ScriptedStage, scripted_stages

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
