"""Several services of a mesh are killed at once while clients stream."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from chunkmesh.errors import Unavailable
from tests.rolling_restart import whole_mesh
from tests.service_process import Service
from tests.standby_mesh import StandbyMesh
from tests.streaming_load import StreamingLoad, asks

pytestmark = pytest.mark.timeout(300)

NUM_CLIENTS = 4


@pytest.fixture(scope="module")
def mesh(tiny: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandbyMesh]:
    """Run two of everything over one Valkey; each test leaves all of it running."""
    with whole_mesh(tiny, tmp_path_factory.mktemp("m")) as running:
        yield running


def killed(mesh: StandbyMesh, *services: Service) -> StreamingLoad:
    """Kill services at once under load and start them again; return what clients found."""
    load = StreamingLoad(mesh.servers(), num_clients=NUM_CLIENTS)
    load.learn(asks())
    with load.running():
        load.wait_for(4)
        for each in services:
            each.send(signal.SIGKILL)
        for each in services:
            assert -signal.SIGKILL == each.exit_status()
            each.start()
        mesh.wait_up(*services)
        load.wait_for(4)
    assert 0 == load.num_differing
    return load


@pytest.mark.parametrize("with_valkey", [False, True], ids=["hicache", "hicache and valkey"])
def test_a_worker_and_its_caches_at_once(mesh: StandbyMesh, *, with_valkey: bool) -> None:
    """What ran on the route goes on at the other one, and computes what it cannot load."""
    caches = [mesh.valkey, *mesh.hicaches] if with_valkey else mesh.hicaches
    load = killed(mesh, mesh.workers[1], *caches)
    assert [] == load.errors, mesh.logs()


def test_all_workers_of_a_stage_at_once(mesh: StandbyMesh) -> None:
    """Nobody can take over: streams end UNAVAILABLE at most, all else is answered later."""
    load = killed(mesh, mesh.workers[0], mesh.workers[2])
    assert len(load.errors) <= NUM_CLIENTS
    assert all(isinstance(error, Unavailable) for error in load.errors), load.errors


def test_the_active_scheduler_and_valkey_at_once(mesh: StandbyMesh) -> None:
    """Nobody can take over while there is no lease to take; with Valkey back somebody does."""
    load = killed(mesh, mesh.active, mesh.valkey)
    assert len(load.errors) <= NUM_CLIENTS
    assert all(isinstance(error, Unavailable) for error in load.errors), load.errors
    assert mesh.active.is_up()
