"""What gRPC itself can do for clients of several schedulers, as docs/reliability.md tells them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chunkmesh.errors import StageUnavailable, Standby
from chunkmesh.status import to_status
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc

_DOCS = Path(__file__).parents[2] / "docs" / "reliability.md"


class _Scheduler(generation_pb2_grpc.GenerationServicer, health_pb2_grpc.HealthServicer):
    """Serves, or stands by and says so to health checks; may refuse its first requests."""

    def __init__(self, *, serves: bool, num_refused: int = 0) -> None:
        self.num_requests = 0
        self._serves = serves
        self._num_refused = num_refused

    async def Generate(self, _request: Any, context: Any) -> Any:
        """Answer, or refuse."""
        self.num_requests += 1
        error = None if self._serves else Standby("standby", retry_after_s=0.1)
        if self.num_requests <= self._num_refused:
            error = StageUnavailable("the route is connecting", retry_after_s=0.1)  # type: ignore[assignment]
        if error is not None:
            status = to_status(error)
            await context.abort(status.code, status.message, status.trailing_metadata)
        yield pb.GenerateResponse(complete=pb.GenerateComplete(text="yes"))

    async def Watch(self, _request: Any, _context: Any) -> Any:
        """Tell the truth."""
        said = health_pb2.HealthCheckResponse
        yield said(status=said.SERVING if self._serves else said.NOT_SERVING)


async def _started(scheduler: _Scheduler) -> tuple[grpc.aio.Server, int]:
    server = grpc.aio.server()
    generation_pb2_grpc.add_GenerationServicer_to_server(scheduler, server)
    health_pb2_grpc.add_HealthServicer_to_server(scheduler, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    return server, port


async def test_the_documented_service_config_passes_standbys_over() -> None:
    """Health checks keep requests away from a standby; a refusal of the active one is retried."""
    (config,) = re.findall(r"```json\n(.*?)```", _DOCS.read_text(), flags=re.DOTALL)
    make: Any = _Scheduler  # its base has more methods than are asked here
    standby: _Scheduler = make(serves=False)
    active: _Scheduler = make(serves=True, num_refused=2)
    started = [await _started(each) for each in (standby, active)]
    target = "ipv4:" + ",".join(f"127.0.0.1:{port}" for _, port in started)
    async with grpc.aio.insecure_channel(target, options=[("grpc.service_config", config)]) as link:
        stub = generation_pb2_grpc.GenerationStub(link)
        for _ in range(4):
            call = stub.Generate(pb.GenerateRequest(text="x"), timeout=20)
            assert ["yes"] == [reply.complete.text async for reply in call]
    for server, _ in started:
        await server.stop(None)
    assert (0, 6) == (standby.num_requests, active.num_requests)
