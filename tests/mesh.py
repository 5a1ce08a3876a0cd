"""A whole mesh in one process: a real scheduler and its ports, workers over memory links."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Any

import grpc

from chunkmesh.address import HostPort
from chunkmesh.grpc_client import PLAIN, Access, channel
from chunkmesh.kv_store import KvStore
from chunkmesh.transports.create import create
from chunkmesh.transports.memory import MemoryNetwork
from chunkmesh.trust.tls_files import TlsFiles
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from scheduler.control_loop import ControlLoop
from scheduler.open_calls import OpenCalls
from scheduler.serve import running
from scheduler.settings import SchedulerSettings
from stage_worker.host_pages import HostPages
from stage_worker.stage import Stage
from stage_worker.start_profile import StartProfile
from stage_worker.worker import Capacity, Worker
from tests.eventually import eventually

PAGE_TOKENS = 16
CHUNK_TOKENS = 64


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """What a test may touch of a running mesh."""

    address: HostPort
    """Users' port of the scheduler."""
    http_address: HostPort
    internal_address: HostPort
    control_loop: ControlLoop
    open_calls: OpenCalls
    channel: grpc.aio.Channel
    stub: generation_pb2_grpc.GenerationAsyncStub

    async def generate(self, **request: Any) -> pb.GenerateComplete:
        """Run one request and return its end."""
        responses = await self.responses(**request)
        return responses[-1].complete

    async def responses(self, **request: Any) -> list[pb.GenerateResponse]:
        """Run one request and return all that came, the end last."""
        call = self.stub.Generate(pb.GenerateRequest(**request), timeout=60)
        responses = [response async for response in call]
        assert responses[-1].WhichOneof("event") == "complete"
        return responses

    async def stands(self) -> None:
        """Wait until a route stands."""
        await eventually(lambda: not self.control_loop.unready_reason())

    async def has_requests(self, num_requests: int) -> None:
        """Wait until so many have come to the engine and have not ended."""
        await eventually(lambda: len(self.control_loop.requests) == num_requests)

    async def at_rest(self) -> None:
        """Wait until nothing is running, waiting or in flight and every page is free."""
        loop = self.control_loop
        await eventually(lambda: loop.engine.is_idle() and not len(loop.requests))


@contextlib.asynccontextmanager
async def mesh(
    model_path: Path,
    stages: Sequence[Stage],
    *,
    kv_capacity_tokens: int | Sequence[int] = 4096,
    host_tokens: int = 0,
    redis_url: str | None = None,
    transport: str = "memory",
    profiles: Sequence[StartProfile | None] = (),
    worker_tls: TlsFiles | None = None,
    user: Access = PLAIN,
    **settings: Any,
) -> AsyncIterator[Mesh]:
    """Run a mesh of these stages while inside; settings are those of the scheduler.

    The user is who calls. The transport is the workers', as are worker_tls, kv_capacity_tokens, for
    all of them or one a stage, host_tokens, for which each has host memory, and profiles, one a
    stage; without, nothing is measured.
    """
    network = MemoryNetwork()
    capacities = _capacities(stages, kv_capacity_tokens, host_tokens)
    async with running(_settings(model_path, settings)) as scheduler, asyncio.TaskGroup() as tasks:
        workers = [
            tasks.create_task(
                run_worker(
                    stage,
                    network,
                    scheduler.internal_address,
                    capacity,
                    redis_url,
                    transport,
                    profile,
                    worker_tls,
                )
            )
            for stage, capacity, profile in zip(
                stages, capacities, profiles or [None] * len(stages), strict=True
            )
        ]
        async with channel(scheduler.address, user) as to_scheduler:
            running_mesh = Mesh(
                address=scheduler.address,
                http_address=scheduler.http_address,
                internal_address=scheduler.internal_address,
                control_loop=scheduler.control_loop,
                open_calls=scheduler.open_calls,
                channel=to_scheduler,
                stub=generation_pb2_grpc.GenerationStub(to_scheduler),
            )
            await running_mesh.stands()
            yield running_mesh
        for worker in workers:
            worker.cancel()


def _settings(model_path: Path, more: dict[str, Any]) -> SchedulerSettings:
    """Return the scheduler's settings: small pages and chunks, patient loads, and what is given."""
    given = {
        "page_size": PAGE_TOKENS,
        "chunked_prefill_size": CHUNK_TOKENS,
        "load_min_tokens": 0,
        "load_timeout_ms": 20_000.0,
        "drain_timeout": 1.0,
        **more,
    }
    return SchedulerSettings(model_path=model_path, port=0, internal_port=0, http_port=0, **given)


def _capacities(
    stages: Sequence[Stage], kv_tokens: int | Sequence[int], host_tokens: int
) -> list[Capacity]:
    """Return what the worker of each stage has room for."""
    each = [kv_tokens] * len(stages) if isinstance(kv_tokens, int) else kv_tokens
    return [
        Capacity(
            kv_tokens=tokens, host=HostPages(host_tokens * stage.description.kv_bytes_per_token)
        )
        for stage, tokens in zip(stages, each, strict=True)
    ]


async def run_worker(
    stage: Stage,
    network: MemoryNetwork,
    scheduler: HostPort,
    capacity: Capacity,
    redis_url: str | None = None,
    transport: str = "memory",
    start_profile: StartProfile | None = None,
    tls: TlsFiles | None = None,
) -> None:
    """Run one worker until cancelled."""
    address = f"memory:{id(stage)}" if transport == "memory" else "127.0.0.1:0"
    worker = Worker(
        stage=stage,
        transport=create(transport, address, network=network, tls=tls),
        stores=[] if redis_url is None else [KvStore(redis_url), KvStore(redis_url)],
        capacity=capacity,
        peer=None,
        on_ready=lambda _ready: None,
    )
    await worker.run([scheduler], start_profile, tls)
