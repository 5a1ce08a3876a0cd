"""chunkmesh.cli.mesh_commands: the services' command lines."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from chunkmesh.address import HostPort
from chunkmesh.cli.endpoints import (
    HicacheEndpoints,
    MeshEndpoints,
    StandbyEndpoints,
    WorkerEndpoints,
)
from chunkmesh.cli.mesh_commands import (
    planned_central,
    planned_gateway,
    planned_standby,
    planned_workers,
)
from chunkmesh.cli.mesh_options import GatewayOptions, MeshOptions
from chunkmesh.cli.process_family import PlannedChild
from chunkmesh.layers import LayerRange


def _local(port: int) -> HostPort:
    return HostPort(host="127.0.0.1", port=port)


_OPTIONS = MeshOptions(model_path=Path("/models/m"), threads=3, scheduler_flags=("--more", "1"))
_ENDPOINTS = MeshEndpoints(
    scheduler=_local(1),
    internal=_local(2),
    side_door=_local(3),
    hicache=HicacheEndpoints(grpc=_local(4), side_door=_local(5), redis_url="unix:///r.sock"),
    workers=(
        WorkerEndpoints(
            layers=LayerRange(first=0, last=15), data=_local(6), grpc=_local(7), side_door=_local(8)
        ),
        WorkerEndpoints(
            layers=LayerRange(first=15, last=30),
            data=_local(9),
            grpc=_local(10),
            side_door=_local(11),
        ),
    ),
)


def _flags(planned: PlannedChild) -> dict[str, str]:
    words = planned.command.command
    pairs = words[words.index("-m") + 2 :]
    return dict(zip(pairs[::2], pairs[1::2], strict=True))


def test_workers_are_chained_by_peer_and_the_last_has_none() -> None:
    """The order of the pipeline stands in --peer."""
    first, last = map(_flags, planned_workers(_OPTIONS, _ENDPOINTS))
    assert (first["--layers"], first["--peer"]) == ("0-14", "127.0.0.1:9")
    assert first["--scheduler"] == "127.0.0.1:2"
    assert last["--layers"] == "15-29"
    assert "--peer" not in last


def test_a_gateway_calls_the_users_port() -> None:
    """By TLS where the mesh has certificates; none runs unless it is asked for."""
    assert planned_gateway(_OPTIONS, _ENDPOINTS) == ()
    endpoints = dataclasses.replace(_ENDPOINTS, gateway=_local(12))
    options = dataclasses.replace(_OPTIONS, gateway=GatewayOptions(), certs=Path("/certs"))
    (plain,) = planned_gateway(_OPTIONS, endpoints)
    (secure,) = planned_gateway(options, endpoints)
    common = {"--host": "127.0.0.1", "--port": "12", "--server": "127.0.0.1:1"}
    assert _flags(plain) == common
    assert _flags(secure) == {**common, "--ssl-ca-certs": "/certs/ca.crt"}


def test_a_worker_has_its_threads_and_the_others_one() -> None:
    """On two cores a scheduler with a thread pool of its own would take time from the stages."""
    worker = planned_workers(_OPTIONS, _ENDPOINTS)[0]
    assert _flags(worker)["--threads"] == "3"
    assert worker.command.environment["OMP_NUM_THREADS"] == "3"
    for planned in planned_central(_OPTIONS, _ENDPOINTS):
        assert planned.command.environment["OMP_NUM_THREADS"] == "1"


def test_the_scheduler_knows_hicache_and_takes_more_flags() -> None:
    """What stands after -- on the command line reaches the scheduler unchanged."""
    _, scheduler = map(_flags, planned_central(_OPTIONS, _ENDPOINTS))
    assert (scheduler["--hicache-url"], scheduler["--more"]) == ("127.0.0.1:4", "1")
    assert "--page-size" not in scheduler


def test_only_a_redis_of_our_own_gets_a_budget() -> None:
    """HiCache must evict before our Redis is full; somebody else's Redis is theirs to size."""
    options = dataclasses.replace(_OPTIONS, redis_max_bytes=4000)
    hicache, _ = map(_flags, planned_central(options, _ENDPOINTS))
    assert hicache["--max-bytes"] == "3000"
    given = dataclasses.replace(options, redis_url="redis://r")
    hicache, _ = map(_flags, planned_central(given, _ENDPOINTS))
    assert "--max-bytes" not in hicache


def test_without_a_cache_nobody_hears_of_one() -> None:
    """--no-cache must not leave a worker that dials a Redis."""
    endpoints = dataclasses.replace(_ENDPOINTS, hicache=None)
    (scheduler,) = map(_flags, planned_central(_OPTIONS, endpoints))
    assert "--hicache-url" not in scheduler
    workers = planned_workers(_OPTIONS, endpoints)
    assert all("CHUNKMESH_REDIS_URL" not in worker.command.environment for worker in workers)


def test_the_redis_is_named_where_no_process_list_shows_it() -> None:
    """A URL may hold a password, and everybody on a machine reads command lines."""
    hicache, scheduler = planned_central(_OPTIONS, _ENDPOINTS)
    for planned in (hicache, *planned_workers(_OPTIONS, _ENDPOINTS)):
        assert planned.command.environment["CHUNKMESH_REDIS_URL"] == "unix:///r.sock"
        assert "unix:///r.sock" not in planned.command.command
    assert "CHUNKMESH_REDIS_URL" not in scheduler.command.environment


def test_each_service_shows_the_certificate_of_its_role() -> None:
    """With --certs all links are mutual TLS."""
    options = dataclasses.replace(_OPTIONS, certs=Path("/certs"))
    planned = [*planned_central(options, _ENDPOINTS), *planned_workers(options, _ENDPOINTS)]
    for role, child in zip(("hicache", "scheduler", "worker", "worker"), planned, strict=True):
        flags = _flags(child)
        shown = [flags[f"--ssl-{name}"] for name in ("certfile", "keyfile", "ca-certs")]
        assert shown == [f"/certs/{role}.crt", f"/certs/{role}.key", "/certs/ca.crt"]


def test_services_do_not_import_from_the_current_folder() -> None:
    """A user's own scheduler.py must not be started instead of the service."""
    for planned in planned_central(_OPTIONS, _ENDPOINTS):
        assert planned.command.command[1:3] == ("-P", "-m")


@pytest.mark.parametrize(
    ("devices", "more", "capacity"),
    [
        (("cuda:0",), (), "16384"),
        (("cuda:0", "cuda:1"), (), None),
        (("cpu",), (), None),
        ((), (), None),
        (("cuda:0",), ("--max-total-tokens", "512"), "512"),
        (("cuda:0",), ("--mem-fraction", "0.3"), None),
    ],
)
def test_workers_that_share_a_gpu_do_not_share_out_its_memory(
    devices: tuple[str, ...], more: tuple[str, ...], capacity: str | None
) -> None:
    """Each would size its keys and values by the same free memory."""
    options = dataclasses.replace(_OPTIONS, devices=devices, worker_flags=more)
    for worker in planned_workers(options, _ENDPOINTS):
        assert _flags(worker).get("--max-total-tokens") == capacity


def test_replicas_are_named_by_their_stage_and_have_no_peer() -> None:
    """Any of them may be the next stage; the scheduler tells which, without a warning."""
    first, last = _ENDPOINTS.workers
    endpoints = dataclasses.replace(_ENDPOINTS, workers=(first, last, last, last))
    workers = planned_workers(_OPTIONS, endpoints)
    names = [each.command.name for each in workers]
    assert names == ["worker-0", "worker-1", "worker-1-1", "worker-1-2"]
    assert [each.role for each in workers] == ["stage 0", "stage 1", "stage 1", "stage 1"]
    assert not any("--peer" in _flags(each) for each in workers)


def test_a_standby_is_a_scheduler_of_the_same_mesh() -> None:
    """Same flags and lease, other ports; the death of one of both does not end the mesh."""
    options = dataclasses.replace(_OPTIONS, mesh_name="m", page_tokens=32)
    endpoints = dataclasses.replace(
        _ENDPOINTS,
        standby=StandbyEndpoints(users=_local(20), internal=_local(21), side_door=_local(22)),
    )
    _, active = planned_central(options, endpoints)
    (standby,) = planned_standby(options, endpoints)
    ports = {"--port": "20", "--internal-port": "21", "--http-port": "22"}
    assert {**_flags(active), **ports} == _flags(standby)
    assert (_flags(standby)["--mesh-name"], active.role) == ("m", standby.role)
    for planned in (active, standby):
        assert planned.command.environment["CHUNKMESH_REDIS_URL"] == "unix:///r.sock"
    worker = planned_workers(options, endpoints)[0]
    assert _flags(worker)["--scheduler"] == "127.0.0.1:2,127.0.0.1:21"


def test_one_scheduler_has_no_lease() -> None:
    """It needs no Redis of its own."""
    assert planned_standby(_OPTIONS, _ENDPOINTS) == ()
    assert "--mesh-name" not in _flags(planned_central(_OPTIONS, _ENDPOINTS)[1])
