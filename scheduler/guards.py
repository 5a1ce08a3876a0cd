"""The guards of a scheduler's two ports, and its access to HiCache, from its settings."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from chunkmesh.grpc_client import Access
from chunkmesh.trust.access import Door, Role
from chunkmesh.trust.guard import Guard
from chunkmesh.trust.key_file import KeyFile, key_file
from chunkmesh.trust.tls_files import TlsFiles, TlsPaths, tls_files
from scheduler.settings import SchedulerSettings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Guards:
    """Who is let in where."""

    users: Guard
    internal: Guard
    hicache: Access
    """How the scheduler itself gets into HiCache."""


def make_guards(settings: SchedulerSettings) -> Guards:
    """Read certificates and keys.

    Raises:
        ConfigError: a file does not do.
    """
    mesh = settings.mesh_tls(Role.SCHEDULER)
    return Guards(
        users=Guard(
            door=Door.USERS,
            tls=None if mesh is None else _users_tls(settings),
            is_mutual=settings.ssl_client_ca is not None,
            api_keys=_keys(settings.api_key_file, "--api-key-file"),
            admin_keys=_keys(settings.admin_api_key_file, "--admin-api-key-file"),
        ),
        internal=Guard(door=Door.INTERNAL, tls=mesh, is_mutual=mesh is not None),
        hicache=Access(tls=mesh, server_role=Role.HICACHE),
    )


def _users_tls(settings: SchedulerSettings) -> TlsFiles:
    """Read the certificate of the users' port, and whose certificates it asks for."""
    if settings.users_ssl_certfile is None:
        flags = ("--ssl-certfile", "--ssl-keyfile", "--ssl-client-ca")
        certfile, keyfile = settings.ssl_certfile, settings.ssl_keyfile
    else:
        flags = ("--users-ssl-certfile", "--users-ssl-keyfile", "--ssl-client-ca")
        certfile, keyfile = settings.users_ssl_certfile, settings.users_ssl_keyfile
    paths = TlsPaths(
        certfile=certfile, keyfile=keyfile, ca_certs=settings.ssl_client_ca, flags=flags
    )
    return tls_files(paths, name="users")


def _keys(path: Path | None, flag: str) -> KeyFile | None:
    return None if path is None else key_file(path, flag=flag)
