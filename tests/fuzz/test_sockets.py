"""Every listening port of every service, to which strangers send whatever they like.

All services run in this process, in plain text over UCX and with TLS over gRPC, so that its logs,
its event loop and its memory are theirs.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import gc
import logging
import random
from collections import deque
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import psutil
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from structlog.testing import capture_logs

from chunkmesh.address import HostPort, Listen
from chunkmesh.grpc_client import PLAIN, Access, channel
from chunkmesh.grpc_server import GrpcServer
from chunkmesh.layers import LayerRange
from chunkmesh.trust.access import Role
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc, hicache_pb2, hicache_pb2_grpc
from deploy.certs.certificates import Authority
from hicache.server import running as hicache_running
from hicache.settings import HiCacheSettings
from scheduler.serve import RunningScheduler
from scheduler.serve import running as scheduler_running
from scheduler.settings import SchedulerSettings
from stage_worker import serve
from stage_worker.settings import WorkerSettings
from tests.bytes_tokenizer import write_bytes_folder
from tests.certificates import access, mesh_settings, new_authority
from tests.eventually import eventually
from tests.free_port import free_port
from tests.fuzz.exploration import explore_async
from tests.fuzz.socket_bytes import SEEDS, Attack, call, draw
from tests.scripted_stage import Script, ScriptedStage
from tests.valkey import running_valkey

_ROUNDS = 25
"""In `make test`; in each there is a connection to every port."""
_WARM_UP = 5
_READ_S = 0.1
_MOST_OPEN = 100
"""Connections that stay, over all ports."""
_MOST_GROWTH_BYTES = 64 << 20
_LAYERS = ("0-0", "1-1")
_RATHER_QUIET = ("warning", "info", "debug")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Services:
    """All services of a mesh, and how they are called."""

    scheduler: RunningScheduler
    grpc: Mapping[str, tuple[HostPort, Access]]
    """By what listens there; the caller may ask for its health."""
    http: Mapping[str, HostPort]
    data: Sequence[HostPort]

    def all_ports(self) -> list[HostPort]:
        """Return where somebody listens."""
        return [*(address for address, _ in self.grpc.values()), *self.http.values(), *self.data]

    async def check(self) -> None:
        """Everybody still serves, and the mesh answers a request and finds its cache."""
        for name, (address, who) in self.grpc.items():
            async with channel(address, who) as link:
                stub: Any = health_pb2_grpc.HealthStub(link)
                said = await stub.Check(health_pb2.HealthCheckRequest(), timeout=20)
            assert said.status == health_pb2.HealthCheckResponse.SERVING, name
        for name, address in self.http.items():
            assert (await _got(address)).startswith(b"HTTP/1.1 200"), name
        address, who = self.grpc["hicache"]
        async with channel(address, who) as link:
            cache = hicache_pb2_grpc.HiCacheStub(link)
            stats = await cache.GetStats(hicache_pb2.GetStatsRequest(), timeout=20)
        assert not stats.redis_fault
        address, who = self.grpc["users"]
        async with channel(address, who) as link:
            generation = generation_pb2_grpc.GenerationStub(link)
            request = pb.GenerateRequest(
                text="healthy", sampling_params=pb.SamplingParams(max_new_tokens=2)
            )
            replies = [reply async for reply in generation.Generate(request, timeout=20)]
        assert replies[-1].complete.completion_tokens == 2


async def _got(address: HostPort) -> bytes:
    """Ask a side door whether its service is ready."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(b"GET /ready HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
    try:
        return await asyncio.wait_for(reader.read(), 20)
    finally:
        writer.close()


def _local(port: int) -> HostPort:
    return HostPort(host="127.0.0.1", port=port)


@contextlib.asynccontextmanager
async def _worker(settings: WorkerSettings) -> AsyncIterator[None]:
    """Run a worker inside; its end before is a failure."""
    stop = asyncio.Event()
    task = asyncio.create_task(serve.serve(settings, stop))
    try:
        yield
        assert not task.done(), task.result()
    finally:
        stop.set()
        await task


@contextlib.asynccontextmanager
async def _services(
    folder: Path, transport: Literal["ucx", "grpc"], authority: Authority | None
) -> AsyncIterator[_Services]:
    """Run Valkey, HiCache, a scheduler and two workers inside."""

    def tls(role: Role) -> dict[str, Any]:
        return {} if authority is None else mesh_settings(authority, role)

    def who(mine: Role | None, server: Role | None = None) -> Access:
        return PLAIN if authority is None else access(authority, mine, server)

    model = write_bytes_folder(folder / "model", config={"num_hidden_layers": len(_LAYERS)})
    async with contextlib.AsyncExitStack() as stack:
        valkey = stack.enter_context(running_valkey(folder))
        cache_http = free_port()
        cache_settings = HiCacheSettings(
            port=0, http_port=cache_http, redis_url=(valkey.unix_url,), **tls(Role.HICACHE)
        )
        hicache = await stack.enter_async_context(hicache_running(cache_settings, ping_s=0.05))
        scheduler = await stack.enter_async_context(
            scheduler_running(
                SchedulerSettings(
                    model_path=model,
                    port=0,
                    internal_port=0,
                    http_port=0,
                    hicache_url=hicache,
                    page_size=16,
                    **tls(Role.SCHEDULER),
                )
            )
        )
        grpc_ports = {
            "users": (scheduler.address, who(None)),
            "internal": (scheduler.internal_address, who(Role.WORKER, Role.SCHEDULER)),
            "hicache": (hicache, who(Role.ADMIN, Role.HICACHE)),
        }
        http_ports = {"scheduler": scheduler.http_address, "hicache": _local(cache_http)}
        data_ports = []
        for layers in _LAYERS:
            port, http, data = (free_port() for _ in range(3))
            settings = WorkerSettings(
                model_path=model,
                layers=LayerRange.parse(layers),
                scheduler=(scheduler.internal_address,),
                port=port,
                http_port=http,
                data_port=data,
                transport=transport,
                profile="off",
                redis_url=(valkey.unix_url,),
                **tls(Role.WORKER),
            )
            await stack.enter_async_context(_worker(settings))
            grpc_ports[f"worker {layers}"] = (_local(port), who(Role.ADMIN, Role.WORKER))
            http_ports[f"worker {layers}"] = _local(http)
            data_ports.append(_local(data))
        await eventually(lambda: not scheduler.control_loop.unready_reason())
        yield _Services(scheduler=scheduler, grpc=grpc_ports, http=http_ports, data=data_ports)


class _Strangers:
    """Owner of the connections that stay."""

    def __init__(self) -> None:
        self.num_answered = 0
        """Connections to which something was said."""
        self._open: deque[asyncio.StreamWriter] = deque()

    async def attack(self, address: HostPort, attack: Attack) -> None:
        """Connect, send, read what comes at once, and go or stay; being refused is no failure."""
        reader, writer = await asyncio.open_connection(address.host, address.port)
        with contextlib.suppress(OSError):
            for piece in attack.pieces:
                writer.write(piece)
                await writer.drain()
                await asyncio.sleep(0)
            with contextlib.suppress(TimeoutError):
                answer = await asyncio.wait_for(reader.read(4096), _READ_S)
                self.num_answered += bool(answer)
        if attack.stays and not reader.at_eof():
            self._open.append(writer)
        else:
            writer.transport.abort()
        while len(self._open) > _MOST_OPEN:
            self._open.popleft().transport.abort()

    def close(self) -> None:
        """End all."""
        for writer in self._open:
            writer.transport.abort()


def _stub_stages(patch: pytest.MonkeyPatch) -> None:
    """Let workers serve stages without weights."""

    def load(_path: Path, *, layers: range, **_more: object) -> ScriptedStage:
        return ScriptedStage(layers.start, layers.stop, len(_LAYERS), Script())

    patch.setattr(serve, "load_stage", load)


@pytest.mark.parametrize(("transport", "is_tls"), [("ucx", False), ("grpc", True)])
async def test_hostile_connections(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    transport: Literal["ucx", "grpc"],
    *,
    is_tls: bool,
) -> None:
    """All go on serving, on the same route; memory is bounded; nothing is told as an error."""
    _stub_stages(monkeypatch)
    authority = new_authority(tmp_path / "ca") if is_tls else None
    process, strangers, sizes = psutil.Process(), _Strangers(), list[int]()
    caplog.set_level(logging.INFO)
    with capture_logs() as logs:
        async with _services(tmp_path, transport, authority) as services:
            routes, ports = services.scheduler.control_loop.workers.routes, services.all_ports()
            epochs = list(routes)
            await services.check()

            async def check(attacks: Sequence[Attack]) -> None:
                await asyncio.gather(*map(strangers.attack, ports, attacks))
                sizes.append(process.memory_info().rss)

            def draw_all(random_: random.Random) -> list[Attack]:
                return [draw(random_) for _ in ports]

            await explore_async(draw_all, check, examples=_ROUNDS)
            try:
                await services.check()
            finally:
                strangers.close()
            assert epochs == list(routes), "a stranger has broken a link"
            gc.collect()
    loud = [each for each in logs if each["log_level"] not in _RATHER_QUIET or "stack" in each]
    assert loud == []
    assert [record.getMessage() for record in caplog.records if record.exc_info] == []
    assert max(sizes[_WARM_UP:]) - sizes[_WARM_UP] < _MOST_GROWTH_BYTES
    assert strangers.num_answered > len(sizes), "hardly anybody read what was sent"


async def test_valid_bytes_are_answered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is spoilt must have been good: calls are understood, hellos get their answer."""
    _stub_stages(monkeypatch)
    async with _services(tmp_path, "ucx", None) as services:
        address, _ = services.grpc["users"]
        answers = [await _answered(address, data) for data in SEEDS[:2]]
        hello = await _answered(services.data[0], SEEDS[-2])
    for answer in answers:
        assert b"application/grpc" in answer
        assert b"grpc-status" in answer
    assert b"CMLA" in hello


async def _answered(address: HostPort, data: bytes) -> bytes:
    """Return what comes back until a whole answer is there, or nothing comes for a while."""
    reader, writer = await asyncio.open_connection(address.host, address.port)
    writer.write(data)
    answer = b""
    with contextlib.suppress(TimeoutError):
        while not (b"grpc-status" in answer or b"CMLA" in answer):
            part = await asyncio.wait_for(reader.read(4096), 5.0)
            answer += part
            if not part:
                break
    writer.transport.abort()
    return answer


async def test_a_path_that_is_no_text_costs_nobody_anything() -> None:
    """One call of a stranger must not close a port for all others, as with grpcio 1.84 and 1.85."""
    server = GrpcServer("chunkmesh.v1.Generation")
    listen = Listen(host="127.0.0.1", port=0, flag="--port", explicit=True)
    async with server.listening(listen, grace_s=0) as address:
        await _answered(address, call(b"/a\xce!/b"))
        answer = await _answered(address, call(b"/grpc.health.v1.Health/Check"))
    assert b"grpc-status" in answer
