"""A scheduler without a standby is started again: the same workers follow it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from chunkmesh.address import HostPort
from chunkmesh.ports import bind_unused
from chunkmesh.transports.memory import MemoryNetwork
from scheduler.serve import RunningScheduler, running
from scheduler.settings import SchedulerSettings
from stage_worker.worker import Capacity
from tests.bytes_tokenizer import write_bytes_folder
from tests.mesh import run_worker
from tests.scripted_stage import Script, scripted_stages


@pytest.fixture
async def workers_of() -> AsyncIterator[HostPort]:
    """Run two workers of a scheduler that is not there yet; yield where it has to listen."""
    with bind_unused("127.0.0.1") as bound:
        address = HostPort(host="127.0.0.1", port=bound.getsockname()[1])
    network = MemoryNetwork()
    async with asyncio.TaskGroup() as tasks:
        workers = [
            tasks.create_task(run_worker(stage, network, address, Capacity(kv_tokens=1024)))
            for stage in scripted_stages(2, Script())
        ]
        yield address
        for worker in workers:
            worker.cancel()


async def stands(scheduler: RunningScheduler) -> int:
    """Wait for a route; return the term of its epoch."""
    async with asyncio.timeout(20):
        while scheduler.control_loop.unready_reason():
            await asyncio.sleep(0.01)
    return scheduler.control_loop.workers.registry.epoch >> 32


async def test_each_start_has_a_higher_term(tmp_path: Path, workers_of: HostPort) -> None:
    """Workers tell what they have seen, for a scheduler that is alone remembers nothing."""
    model_path = write_bytes_folder(tmp_path, config={"num_hidden_layers": 2})
    settings = SchedulerSettings(
        model_path=model_path, port=0, internal_port=workers_of.port, http_port=0, page_size=16
    )
    terms = []
    for _ in range(3):
        async with running(settings) as scheduler:
            terms.append(await stands(scheduler))
    assert [1, 2, 3] == terms
