"""Real certificates for tests, as `make certs` makes them, and what reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from chunkmesh.grpc_client import Access
from chunkmesh.trust.access import Role
from chunkmesh.trust.tls_files import TlsFiles, TlsPaths, tls_files
from deploy.certs.certificates import Authority, Issued


def new_authority(folder: Path) -> Authority:
    """Make an authority in a folder of its own."""
    folder.mkdir(parents=True)
    return Authority(folder, folder.name)


def files_of(issued: Issued, authority: Authority, role: Role | None = None) -> TlsFiles:
    """Read a certificate that trusts an authority."""
    paths = TlsPaths(certfile=issued.certfile, keyfile=issued.keyfile, ca_certs=authority.certfile)
    return tls_files(paths, name="test", role=role)


def mesh_files(authority: Authority, role: Role) -> TlsFiles:
    """Issue the certificate of a role and read it."""
    return files_of(authority.issue_role(role), authority, role)


def access(authority: Authority, mine: Role | None, server: Role | None = None) -> Access:
    """Return how somebody of a role calls a server of a role; None shows no certificate.

    The server is known by its address if it has no role.
    """
    if mine is None:
        files = tls_files(TlsPaths(ca_certs=authority.certfile), name="test")
    else:
        files = mesh_files(authority, mine)
    return Access(tls=files, server_role=server)


def mesh_settings(authority: Authority, role: Role) -> dict[str, Any]:
    """Return a service's settings for TLS."""
    issued = authority.issue_role(role)
    return {
        "ssl_certfile": issued.certfile,
        "ssl_keyfile": issued.keyfile,
        "ssl_ca_certs": authority.certfile,
    }
