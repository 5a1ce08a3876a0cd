"""Health while a stage loads, and after a warm-up that fails: it follows facts, not the start."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import re
import threading
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any, NoReturn, TypeAlias

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from safetensors.torch import load_file, save_file

from chunkmesh.address import HostPort
from chunkmesh.errors import ConfigError
from chunkmesh.grpc_client import channel
from chunkmesh.layers import LayerRange
from scheduler.serve import RunningScheduler, running
from scheduler.settings import SchedulerSettings
from stage_worker import serve
from stage_worker.model_stage import ModelStage, load_stage
from stage_worker.settings import WorkerSettings
from tests.bytes_tokenizer import write_bytes_folder
from tests.eventually import eventually
from tests.free_port import free_port
from tests.tiny_models import make_tiny_llama

Said: TypeAlias = "int | grpc.StatusCode"

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVICE = "chunkmesh.v1.Generation"
MISSING = "no worker holds layers 2-3"
GIVEN_UP = RuntimeError("the kernels did not compile")


async def asked(address: HostPort, *names: str) -> list[Said]:
    """Ask health of services by their names."""
    said: list[Said] = []
    async with channel(address) as link:
        stub: Any = health_pb2_grpc.HealthStub(link)
        for name in names:
            try:
                answer = await stub.Check(health_pb2.HealthCheckRequest(service=name), timeout=20)
                said.append(answer.status)
            except grpc.aio.AioRpcError as error:
                said.append(error.code())
    return said


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Half:
    """A scheduler whose first stage is attached, and who asks for health again and again."""

    scheduler: RunningScheduler
    model: Path
    seen: set[tuple[Said, ...]]
    """What the users' port has said of itself, of its service, and of an unknown one."""

    def reason(self) -> str:
        """Say why the mesh does not serve."""
        return self.scheduler.control_loop.unready_reason()

    def worker(
        self, layers: str, port: int, model: Path | None = None, **more: Any
    ) -> asyncio.Task[None]:
        """Run a worker as its command does, by default of the scheduler's model."""
        settings = WorkerSettings(
            model_path=model or self.model,
            layers=LayerRange.parse(layers),
            scheduler=(self.scheduler.internal_address,),
            transport="grpc",
            port=port,
            http_port=0,
            data_port=0,
            **more,
        )
        return asyncio.create_task(serve.serve(settings, asyncio.Event()))

    async def watch(self) -> None:
        """Ask until cancelled."""
        while True:
            self.seen.add(tuple(await asked(self.scheduler.address, "", SERVICE, "x.Typo")))
            await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def half(model: Path) -> AsyncIterator[Half]:
    """Have half a mesh inside."""
    settings = SchedulerSettings(model_path=model, port=0, internal_port=0, http_port=0)
    async with running(settings) as scheduler:
        made = Half(scheduler=scheduler, model=model, seen=set())
        first = made.worker("0-1", 0, profile="off")
        await eventually(lambda: made.reason() == MISSING)
        watching = asyncio.create_task(made.watch())
        try:
            yield made
            assert not watching.done()
        finally:
            for task in (watching, first):
                task.cancel()
            await asyncio.gather(watching, first, return_exceptions=True)


async def test_o28_health_is_off_until_all_stages_are_loaded(
    tiny: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the scheduler and of the worker, whatever is asked for; a typo is told apart."""
    begun, may_end, port = threading.Event(), threading.Event(), free_port()

    def load_slowly(*given: Any, **named: Any) -> ModelStage:
        begun.set()
        assert may_end.wait(60)
        return load_stage(*given, **named)

    async with half(tiny) as made:
        monkeypatch.setattr(serve, "load_stage", load_slowly)
        last = made.worker("2-3", port, profile="off")
        address = HostPort(host="127.0.0.1", port=port)
        assert await asyncio.to_thread(begun.wait, 60)
        made.seen.clear()
        await asyncio.sleep(1.0)
        assert {(NOT_SERVING, NOT_SERVING, grpc.StatusCode.NOT_FOUND)} == made.seen
        assert [NOT_SERVING, grpc.StatusCode.NOT_FOUND] == await asked(address, "", "x.Typo")
        may_end.set()
        await eventually(lambda: not made.reason())
        assert [SERVING, SERVING] == await asked(made.scheduler.address, "", SERVICE)
        assert [SERVING] == await asked(address, "")
        last.cancel()
        await asyncio.gather(last, return_exceptions=True)


def fail_behind_the_weights(patch: pytest.MonkeyPatch) -> None:
    """Fail where a GPU is warmed up, on the thread that loads."""

    def load_and_fail(*given: Any, **named: Any) -> NoReturn:
        load_stage(*given, **named)
        raise GIVEN_UP

    patch.setattr(serve, "load_stage", load_and_fail)


def fail_in_forwards(patch: pytest.MonkeyPatch) -> None:
    """Fail in the first forwards, on the compute thread."""

    def fail(*_given: object) -> NoReturn:
        raise GIVEN_UP

    patch.setattr(ModelStage, "forward", fail)


@pytest.mark.parametrize("fail", [fail_behind_the_weights, fail_in_forwards])
async def test_o28_health_stays_off_when_a_warm_up_fails(
    tiny: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    fail: Callable[[pytest.MonkeyPatch], None],
) -> None:
    """The worker ends with the reason and is in no route; nobody ever says SERVING."""
    port = free_port()
    of_worker: set[Said] = set()
    async with half(tiny) as made:
        fail(monkeypatch)
        worker = made.worker("2-3", port, profile_dir=tmp_path)
        while not worker.done():
            of_worker.update(await asked(HostPort(host="127.0.0.1", port=port), ""))
        assert worker.exception() is GIVEN_UP
        await asyncio.sleep(0.2)
        assert made.reason() == MISSING
    assert {(NOT_SERVING, NOT_SERVING, grpc.StatusCode.NOT_FOUND)} == made.seen
    assert NOT_SERVING in of_worker
    assert SERVING not in of_worker


def lose_shard(folder: Path) -> str:
    """Remove the second of three shards; return its name."""
    shard = sorted(folder.glob("*.safetensors"))[1]
    shard.unlink()
    return shard.name


def lose_tensor(folder: Path) -> str:
    """Remove a tensor of the last layer from its shard, but not from the index; return its name."""
    name = "model.layers.3.mlp.up_proj.weight"
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    shard = folder / index["weight_map"][name]
    tensors = load_file(shard)
    del tensors[name]
    save_file(tensors, shard, metadata={"format": "pt"})
    return name


@pytest.mark.parametrize("lose", [lose_shard, lose_tensor])
async def test_o24_weights_that_never_arrive_end_the_worker(
    tiny: Path, tmp_path: Path, lose: Callable[[Path], str]
) -> None:
    """What is missing is named, before the worker registers; health never says SERVING."""
    folder = write_bytes_folder(tmp_path / "model")
    make_tiny_llama(folder, tie_word_embeddings=True, max_shard_size="300KB")
    name = lose(folder)
    async with half(tiny) as made:
        with pytest.raises(ConfigError, match=re.escape(name)):
            await made.worker("2-3", 0, folder, profile="off")
        assert len(made.scheduler.control_loop.workers.registry.workers) == 1
        assert made.reason() == MISSING
        await asyncio.sleep(0.1)
    assert {(NOT_SERVING, NOT_SERVING, grpc.StatusCode.NOT_FOUND)} == made.seen
