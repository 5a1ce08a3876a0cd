"""A service is given the certificates of a wrong authority by mistake, and then the right ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chunkmesh.address import HostPort
from chunkmesh.grpc_client import Access, channel
from chunkmesh.layers import partition
from chunkmesh.transports.memory import MemoryNetwork
from chunkmesh.trust.access import Role
from deploy.certs.certificates import Authority
from stage_worker.host_pages import HostPages
from stage_worker.model_stage import load_stage
from stage_worker.worker import Capacity
from tests.certificates import access, mesh_files, mesh_settings, new_authority
from tests.eventually import eventually
from tests.mesh import mesh, run_worker
from tests.random_ids import make_prompt
from tests.recorded_stage import RecordedStage
from tests.reference import Reference

_NEW_TOKENS = 4
_PARAMS = {"temperature": 0, "max_new_tokens": _NEW_TOKENS, "ignore_eos": True}


def _stages(folder: Path) -> list[RecordedStage]:
    return [
        RecordedStage(load_stage(folder, layers=range(part.first, part.last)))
        for part in partition(4, 2)
    ]


def _contents(authority: Authority) -> dict[str, bytes]:
    """Return what the scheduler's files hold if they are of an authority."""
    paths = mesh_settings(authority, Role.SCHEDULER)
    return {name: path.read_bytes() for name, path in paths.items()}


def _write(folder: Path, contents: dict[str, bytes]) -> dict[str, Any]:
    """Put new files in the place of those of a scheduler; return its settings."""
    folder.mkdir(exist_ok=True)
    for name, content in contents.items():
        new = folder / "new"
        new.touch(mode=0o600)
        new.write_bytes(content)
        new.replace(folder / name)
    return {name: folder / name for name in contents}


async def _code(address: HostPort, how: Access) -> grpc.StatusCode:
    """Ask over a connection of its own whether a port serves; return how the call ended."""
    async with channel(address, how) as connection:
        health: Any = health_pb2_grpc.HealthStub(connection)
        call = health.Check(health_pb2.HealthCheckRequest(), timeout=10)
        code: grpc.StatusCode = await call.code()
        return code


async def test_a_wrong_authority_cuts_nobody_off_and_is_taken_back(
    tiny: Path, reference: Reference, tmp_path: Path
) -> None:
    """What stands goes on, who comes new is refused until the old files are back, then let in."""
    right, wrong = new_authority(tmp_path / "right"), new_authority(tmp_path / "wrong")
    of_right, of_wrong = _contents(right), _contents(wrong)
    folder, prompt = tmp_path / "scheduler", make_prompt(50, seed=3)
    expected = reference.generate(prompt, _NEW_TOKENS)
    worker_tls = mesh_files(right, Role.WORKER)
    user, worker = access(right, None), access(right, Role.WORKER, Role.SCHEDULER)
    settings = _write(folder, of_right)
    async with mesh(tiny, _stages(tiny), worker_tls=worker_tls, user=user, **settings) as running:
        codes = []
        spare = None
        for contents in (of_right, of_wrong, of_right):
            _write(folder, contents)
            answer = await running.generate(input_ids={"ids": prompt}, sampling_params=_PARAMS)
            assert expected == list(answer.output_ids)
            codes.append(
                (
                    await _code(running.address, user),
                    await _code(running.internal_address, worker),
                    await _code(running.address, access(wrong, None)),
                )
            )
            if contents is of_wrong:
                spare = asyncio.create_task(_run_spare(tiny, running.internal_address, right))
                await asyncio.sleep(1.0)
                assert 2 == len(running.control_loop.workers.registry.workers)
        await eventually(lambda: 3 == len(running.control_loop.workers.registry.workers))
        assert spare is not None
        spare.cancel()
        await asyncio.gather(spare, return_exceptions=True)
    ok, away = grpc.StatusCode.OK, grpc.StatusCode.UNAVAILABLE
    assert [(ok, ok, away), (away, away, ok), (ok, ok, away)] == codes


async def _run_spare(tiny: Path, scheduler: HostPort, authority: Authority) -> None:
    """Run one more worker of the first layers, which tries until it is let in."""
    stage = _stages(tiny)[0]
    capacity = Capacity(kv_tokens=4096, host=HostPages(0))
    tls = mesh_files(authority, Role.WORKER)
    await run_worker(stage, MemoryNetwork(), scheduler, capacity, tls=tls)
