"""The table of ports, methods and roles."""

from __future__ import annotations

import pytest

from chunkmesh.trust.access import ACCESS, Door, Role, allowed_roles, is_open, roles_of_names
from chunkmesh.v1 import data_plane_pb2, generation_pb2, hicache_pb2, stage_pb2

_FILES = {
    Door.USERS: generation_pb2,
    Door.INTERNAL: stage_pb2,
    Door.HICACHE: hicache_pb2,
    Door.DATA: data_plane_pb2,
}
REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


@pytest.mark.parametrize("door", _FILES)
def test_every_method_has_its_line(door: Door) -> None:
    """A method that was added to a proto and forgotten here would be closed to everybody."""
    methods = {
        f"/{service.full_name}/{method.name}"
        for service in _FILES[door].DESCRIPTOR.services_by_name.values()
        for method in service.methods
    }
    assert methods == ACCESS[door].keys() - {REFLECTION}


@pytest.mark.parametrize(
    ("door", "method", "roles"),
    [
        (Door.USERS, "/chunkmesh.v1.Generation/Generate", {Role.CLIENT, Role.ADMIN}),
        (Door.USERS, "/chunkmesh.v1.Generation/FlushCache", {Role.ADMIN}),
        (Door.USERS, "/chunkmesh.v1.Generation/GetTimelines", {Role.ADMIN}),
        (Door.INTERNAL, "/chunkmesh.v1.StageControl/Attach", {Role.WORKER}),
        (Door.HICACHE, "/chunkmesh.v1.HiCache/Commit", {Role.SCHEDULER, Role.ADMIN}),
        (Door.HICACHE, "/chunkmesh.v1.HiCache/Evict", {Role.ADMIN}),
        (Door.DATA, "/chunkmesh.v1.DataPlane/Link", {Role.WORKER}),
        (Door.INTERNAL, "/chunkmesh.v1.Generation/FlushCache", set()),
        (Door.USERS, "/chunkmesh.v1.StageControl/Attach", set()),
        (Door.WORKER, "/anything/Else", set()),
    ],
)
def test_who_may(door: Door, method: str, roles: set[Role]) -> None:
    """The promises of the threat model, each a line."""
    assert roles == allowed_roles(door, method)


def test_only_health_is_open() -> None:
    """Probes carry neither keys nor roles."""
    assert is_open("/grpc.health.v1.Health/Check")
    assert is_open("/grpc.health.v1.Health/Watch")
    assert not any(is_open(method) for methods in ACCESS.values() for method in methods)


def test_names_of_certificates() -> None:
    """A certificate may stand for several roles; other names stand for none."""
    names = ["worker.chunkmesh", "admin.chunkmesh", "scheduler", "chunkmesh", "x.worker.chunkmesh"]
    assert {Role.WORKER, Role.ADMIN} == roles_of_names(names)
