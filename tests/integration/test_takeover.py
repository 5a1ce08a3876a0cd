"""A standby takes over from an active scheduler that is killed, stopped, or that ends as it should.

Real processes and a real Valkey; clients that try again lose nothing.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc

from chunkmesh.cli.generation_client import GenerationClient
from chunkmesh.errors import Standby
from chunkmesh.status import DETAILS_KEY
from chunkmesh.v1 import generation_pb2 as pb
from chunkmesh.v1 import generation_pb2_grpc
from scheduler.leadership import TTL_S
from tests.patient_load import Load, generated
from tests.standby_mesh import Scheduler, Shape, StandbyMesh
from tests.valkey import Valkey, running_valkey

pytestmark = pytest.mark.timeout(300)

TAKE_OVER_S = 5.0
LONG_TOKENS = 200
SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING


@pytest.fixture(scope="module")
def shared_valkey(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Valkey]:
    """Run a Valkey for all tests here."""
    with running_valkey(tmp_path_factory.mktemp("v")) as server:
        yield server


@pytest.fixture(scope="module")
def mesh(
    tiny: Path, shared_valkey: Valkey, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[StandbyMesh]:
    """Run one mesh for all tests here: whoever is active in the end is so in the next test."""
    folder = tmp_path_factory.mktemp("mesh")
    shape = Shape(scheduler_flags=("--drain-timeout=60",))
    with StandbyMesh(tiny, shared_valkey, folder, shape).running() as running:
        yield running


def other_than(mesh: StandbyMesh, scheduler: Scheduler) -> Scheduler:
    """Return the other scheduler."""
    (other,) = (each for each in mesh.schedulers if each is not scheduler)
    return other


def long_request() -> pb.GenerateRequest:
    """Return a request that streams many tokens."""
    params = pb.SamplingParams(temperature=0, max_new_tokens=LONG_TOKENS, ignore_eos=True)
    return pb.GenerateRequest(text="Once upon a time", stream=True, sampling_params=params)


def test_a_standby_tells_everybody_who_is_active(mesh: StandbyMesh) -> None:
    """Health, the side door, GetServerInfo, and the details of every refused request."""
    active = mesh.active
    standby = other_than(mesh, active)
    reason = f"standby; active is {active.users}"
    said = standby.ready()
    assert (False, "standby", reason) == (said["ready"], said["state"], said["reason"])
    with grpc.insecure_channel(str(standby.users)) as channel:
        health: Any = health_pb2_grpc.HealthStub(channel)
        for name in ("", "chunkmesh.v1.Generation"):
            status = health.Check(health_pb2.HealthCheckRequest(service=name), timeout=5).status
            assert NOT_SERVING == status
        stub = generation_pb2_grpc.GenerationStub(channel)
        info = stub.GetServerInfo(pb.GetServerInfoRequest(), timeout=5)
        assert (reason, str(active.users)) == (info.reason, info.active_scheduler)
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Generate(pb.GenerateRequest(text="x"), timeout=5))
    assert grpc.StatusCode.UNAVAILABLE is refused.value.code()
    metadata: Any = refused.value.trailing_metadata()
    details = dict(metadata)[DETAILS_KEY]
    kinds = {each.TypeName(): each for each in status_pb2.Status.FromString(details).details}
    told, retry = error_details_pb2.ErrorInfo(), error_details_pb2.RetryInfo()
    kinds["google.rpc.ErrorInfo"].Unpack(told)
    kinds["google.rpc.RetryInfo"].Unpack(retry)
    assert ("STANDBY", str(active.users)) == (told.reason, told.metadata["active"])
    assert 0 < retry.retry_delay.ToMilliseconds() <= 1000


def test_a_killed_scheduler_costs_a_pause(mesh: StandbyMesh) -> None:
    """No request of patient clients fails, and the dead one comes back as the standby."""
    active = mesh.active
    heir = other_than(mesh, active)
    with Load(mesh.servers()).running() as load:
        load.wait_for(5)
        active.end(signal.SIGKILL)
        killed_s = time.monotonic()
        mesh.wait_state(heir, "serving")
        took_s = time.monotonic() - killed_s
        load.wait_for(6)
    assert ([], 1) == (load.errors, len(set(load.outputs)))
    assert took_s <= TAKE_OVER_S, mesh.logs()
    active.start()
    mesh.wait_state(active, "standby")


def test_a_stopped_scheduler_that_wakes_up_harms_nobody(mesh: StandbyMesh) -> None:
    """It is followed by nobody any more, ends what hung in it, and stands by."""
    active = mesh.active
    heir = other_than(mesh, active)
    with Load(mesh.servers()).running() as load:
        load.wait_for(3)
        active.send(signal.SIGSTOP)
        try:
            mesh.wait_state(heir, "serving")
            with GenerationClient(heir.users) as client:
                generated(client)
        finally:
            active.send(signal.SIGCONT)
        mesh.wait_state(active, "standby")
        load.wait_for(6)
    assert ([], 1) == (load.errors, len(set(load.outputs)))
    assert "serving" == heir.ready()["state"]


@pytest.mark.alone
def test_o28_a_scheduler_that_ends_as_it_should_is_followed_at_once(mesh: StandbyMesh) -> None:
    """Health is off and new requests are refused at once; streams go on to their ends.

    After that the standby need not wait for a lease to end.
    """
    active = mesh.active
    heir = other_than(mesh, active)
    with (
        grpc.insecure_channel(str(active.users)) as channel,
        Load(mesh.servers(), num_clients=1).running() as load,
    ):
        health: Any = health_pb2_grpc.HealthStub(channel)
        watches = [
            health.Watch(health_pb2.HealthCheckRequest(service=name), timeout=60)
            for name in ("", "chunkmesh.v1.Generation")
        ]
        assert [SERVING] * 2 == [next(watch).status for watch in watches]
        stub = generation_pb2_grpc.GenerationStub(channel)
        streams = [stub.Generate(long_request(), timeout=60) for _ in range(3)]
        begins = [next(stream) for stream in streams]
        active.send(signal.SIGTERM)
        assert [NOT_SERVING] * 2 == [next(watch).status for watch in watches]
        with pytest.raises(grpc.RpcError) as refused:
            list(stub.Generate(pb.GenerateRequest(text="x"), timeout=5))
        assert "the scheduler is shutting down" == refused.value.details()
        said = active.ready()
        assert (False, "draining") == (said["ready"], said["state"])
        ends = [list(stream)[-1].complete for stream in streams]
        assert [LONG_TOKENS] * 3 == [end.completion_tokens for end in ends]
        assert all(begin.HasField("chunk") for begin in begins)
        assert 0 == active.exit_status()
        ended_s = time.monotonic()
        mesh.wait_state(heir, "serving")
        took_s = time.monotonic() - ended_s
        load.wait_for(2)
    assert ([], 1) == (load.errors, len(set(load.outputs)))
    assert took_s < 2.0, mesh.logs()
    active.start()
    mesh.wait_state(active, "standby")


def test_redis_may_go_and_come_back_empty(mesh: StandbyMesh, shared_valkey: Valkey) -> None:
    """The active one goes on serving, and is still the active one afterwards."""
    active = mesh.active
    standby = other_than(mesh, active)
    with Load(mesh.servers()).running() as load:
        load.wait_for(2)
        shared_valkey.stop()
        while "Redis" not in standby.ready()["reason"]:
            time.sleep(0.02)
        time.sleep(TTL_S)
        load.wait_for(5)
        shared_valkey.start()
        mesh.wait_state(standby, "standby")
        while standby.ready()["reason"] != f"standby; active is {active.users}":
            time.sleep(0.02)
        load.wait_for(2)
    assert ([], 1) == (load.errors, len(set(load.outputs)))
    assert "serving" == active.ready()["state"]
    with GenerationClient(standby.users) as client, pytest.raises(Standby) as refused:
        generated(client)
    assert str(active.users) == refused.value.active
