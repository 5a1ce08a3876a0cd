"""A worker that is cancelled ends, whatever its stream to the scheduler does at that moment."""

from __future__ import annotations

import asyncio

import grpc
import pytest

from chunkmesh.address import HostPort
from chunkmesh.transports.memory import MemoryNetwork
from stage_worker.session import Session
from stage_worker.worker import Capacity
from tests.free_port import free_port
from tests.mesh import run_worker
from tests.scripted_stage import Script, scripted_stages


async def test_a_swallowed_cancellation_still_ends_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """grpc.aio swallows it while a stream is prepared, and raises why that failed.

    The worker dialled again then, and whoever had cancelled it waited for ever.
    """
    is_dialling = asyncio.Event()

    async def run(_session: Session, *_: object) -> None:
        is_dialling.set()
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            nothing = grpc.aio.Metadata()
            code = grpc.StatusCode.UNAVAILABLE
            raise grpc.aio.AioRpcError(code, nothing, nothing, "connection refused") from None

    monkeypatch.setattr(Session, "run", run)
    stage, _ = scripted_stages(2, Script())
    nobody = HostPort(host="127.0.0.1", port=free_port())
    worker = asyncio.create_task(run_worker(stage, MemoryNetwork(), nobody, Capacity(kv_tokens=64)))
    await is_dialling.wait()
    worker.cancel()
    done, _ = await asyncio.wait([worker], timeout=10)
    assert done == {worker}
    assert worker.cancelled()
