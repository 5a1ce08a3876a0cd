"""SIGTERM of a scheduler whose requests are parked: they get the time that others get, no more."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import signal
import time
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest

from chunkmesh.address import HostPort
from chunkmesh.errors import Unavailable
from chunkmesh.grpc_client import PLAIN, channel
from chunkmesh.status import from_rpc_error
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from tests.free_port import free_port
from tests.service_process import WAIT_S, ServiceProcess
from tests.standby_mesh import Scheduler

_NEW_TOKENS = 200
_LAYERS = ("0:2", "2:4")
_REQUEST = pb.GenerateRequest(
    text="What is parked?",
    stream=True,
    sampling_params=pb.SamplingParams(temperature=0, max_new_tokens=_NEW_TOKENS, ignore_eos=True),
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Mesh:
    scheduler: Scheduler
    stub: generation_pb2_grpc.GenerationAsyncStub
    workers: tuple[ServiceProcess, ...]

    async def reaches(self, state: str) -> None:
        """Wait until /ready says so."""
        async with asyncio.timeout(WAIT_S):
            while (await asyncio.to_thread(self.scheduler.ready))["state"] != state:
                await asyncio.sleep(0.02)

    async def exit_code(self) -> int:
        """Wait for the scheduler to end."""
        return await asyncio.to_thread(self.scheduler.exit_status)


@contextlib.asynccontextmanager
async def _mesh(tiny: Path, folder: Path, *flags: str) -> AsyncIterator[_Mesh]:
    """Run a scheduler and two workers as processes."""
    users, internal, http = (free_port() for _ in range(3))
    command = (
        "chunkmesh-scheduler", f"--model-path={tiny}", f"--port={users}",
        f"--internal-port={internal}", f"--http-port={http}", "--page-size=16",
        "--takeover-wait=60", *flags,
    )  # fmt: skip
    scheduler = Scheduler(
        command=command,
        http_port=http,
        log_path=folder / "scheduler.log",
        users=HostPort(host="127.0.0.1", port=users),
        internal=HostPort(host="127.0.0.1", port=internal),
    )
    workers = tuple(_worker(tiny, layers, scheduler.internal, folder) for layers in _LAYERS)
    with contextlib.ExitStack() as stack:
        for each in (scheduler, *workers):
            each.start()
            stack.callback(each.close)
        async with channel(scheduler.users, PLAIN) as link:
            stub = generation_pb2_grpc.GenerationStub(link)
            running = _Mesh(scheduler=scheduler, stub=stub, workers=workers)
            await running.reaches("serving")
            yield running


def _worker(tiny: Path, layers: str, scheduler: HostPort, folder: Path) -> ServiceProcess:
    command = (
        "stage-worker", f"--model-path={tiny}", f"--layers={layers}", f"--scheduler={scheduler}",
        "--port=0", "--http-port=0", f"--data-port={free_port()}", "--profile=off",
    )  # fmt: skip
    return ServiceProcess(command=command, log_path=folder / f"worker-{layers[0]}.log")


async def _parked(running: _Mesh) -> AsyncIterator[pb.GenerateResponse]:
    """Begin a request, kill a worker while it runs, and end the scheduler while it is parked."""
    call = aiter(running.stub.Generate(_REQUEST, timeout=60))
    await anext(call)
    running.workers[1].end(signal.SIGKILL)
    await running.reaches("waiting")
    running.scheduler.send(signal.SIGTERM)
    await running.reaches("draining")
    return call


async def test_parked_requests_end_with_the_drain(tiny: Path, tmp_path: Path) -> None:
    """Not when the wait for a worker does, a minute later, and with a status to try again on."""
    async with _mesh(tiny, tmp_path, "--drain-timeout=1") as running:
        call = await _parked(running)
        begin_s = time.monotonic()
        with pytest.raises(grpc.aio.AioRpcError) as ended:
            await _answer(call)
        error = from_rpc_error(ended.value)
        assert isinstance(error, Unavailable)
        assert "the scheduler has shut down" in str(error)
        assert error.retry_after_s
        assert 0 == await running.exit_code()
        assert time.monotonic() - begin_s < 5


async def test_parked_requests_go_on_while_the_scheduler_drains(tiny: Path, tmp_path: Path) -> None:
    """Who comes in time is taken in; then nothing is waited for any more."""
    async with _mesh(tiny, tmp_path, "--drain-timeout=60") as running:
        expected = await _answer(aiter(running.stub.Generate(_REQUEST, timeout=60)))
        call = await _parked(running)
        with pytest.raises(grpc.aio.AioRpcError, match="shutting down"):
            await _answer(aiter(running.stub.Generate(_REQUEST, timeout=60)))
        running.workers[1].start()
        assert expected == await _answer(call)
        assert 0 == await running.exit_code()
    assert "requests cut off" not in running.scheduler.log_path.read_text()


async def _answer(replies: AsyncIterator[pb.GenerateResponse]) -> list[int]:
    """Read a call to its end."""
    *_, end = [reply async for reply in replies]
    return list(end.complete.output_ids)
