"""The one table of who may call which method on which port. Pure.

A role comes from a name in a certificate (worker.chunkmesh) or from a bearer key. What the table
does not name is refused, so that a new method is closed until somebody opens it.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Mapping

NAME_SUFFIX = ".chunkmesh"
_HEALTH = "/grpc.health.v1.Health/"
_REFLECTION = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo"


class Role(enum.StrEnum):
    """What somebody is in the mesh."""

    SCHEDULER = "scheduler"
    WORKER = "worker"
    HICACHE = "hicache"
    ADMIN = "admin"
    """An operator."""
    CLIENT = "client"
    """A user."""

    @property
    def certificate_name(self) -> str:
        """DNS name in the certificates of this role."""
        return f"{self.value}{NAME_SUFFIX}"


class Door(enum.StrEnum):
    """A gRPC port of the mesh."""

    USERS = "users' port"
    """The scheduler's, 50051."""
    INTERNAL = "internal port"
    """The scheduler's, 50052."""
    HICACHE = "hicache port"
    """hicache-server's, 50071."""
    WORKER = "worker port"
    """A worker's, 50061: health and reflection."""
    DATA = "data port"
    """A worker's, 5001, with --transport grpc."""


_USERS = frozenset({Role.CLIENT, Role.ADMIN})
_ADMIN = frozenset({Role.ADMIN})
_ALL = frozenset(Role)
_CACHE_USERS = frozenset({Role.SCHEDULER, Role.ADMIN})


def _methods(service: str, roles: frozenset[Role], *names: str) -> dict[str, frozenset[Role]]:
    return {f"/chunkmesh.v1.{service}/{name}": roles for name in names}


ACCESS: Mapping[Door, Mapping[str, frozenset[Role]]] = {
    Door.USERS: {
        **_methods("Generation", _USERS, "Generate", "Tokenize", "Detokenize", "Abort"),
        **_methods("Generation", _USERS, "GetModelInfo", "GetServerInfo"),
        **_methods("Generation", _ADMIN, "FlushCache", "GetTimelines"),
        _REFLECTION: _USERS,
    },
    Door.INTERNAL: {
        **_methods("StageControl", frozenset({Role.WORKER}), "Attach"),
        _REFLECTION: _ALL,
    },
    Door.HICACHE: {
        **_methods("HiCache", _CACHE_USERS, "Match", "ReleaseLease", "RenewLeases"),
        **_methods("HiCache", _CACHE_USERS, "Commit", "Invalidate", "GetStats", "Clear"),
        **_methods("HiCache", _ADMIN, "Lookup", "ListNamespaces", "ListRuns", "Pin", "Unpin"),
        **_methods("HiCache", _ADMIN, "Evict", "SetQuota", "Verify", "Export", "Import"),
        **_methods("HiCache", _ADMIN, "Watch", "GetAuditLog"),
        _REFLECTION: _ALL,
    },
    Door.WORKER: {_REFLECTION: _ALL},
    Door.DATA: _methods("DataPlane", frozenset({Role.WORKER}), "Link"),
}
"""Door -> method -> roles that may call it. Health is everybody's, at every door."""


def is_open(method: str) -> bool:
    """Whether a method is everybody's."""
    return method.startswith(_HEALTH)


def allowed_roles(door: Door, method: str) -> frozenset[Role]:
    """Return the roles that may call a method that is not open; none for a method not named."""
    return ACCESS[door].get(method, frozenset())


def roles_of_names(names: Iterable[str]) -> frozenset[Role]:
    """Return the roles that a certificate's DNS names stand for."""
    of_name = {role.certificate_name: role for role in Role}
    return frozenset(of_name[name] for name in names if name in of_name)
