"""Certificates and keys from PEM files, checked as peers will check them, before they are used.

Knows no gRPC; chunkmesh.trust.credentials hands what is read here to it.
"""

from __future__ import annotations

import dataclasses
import ssl
from pathlib import Path

from chunkmesh.errors import ConfigError, reason_of
from chunkmesh.trust.access import Role
from chunkmesh.trust.secret_file import check_private
from chunkmesh.trust.watched_files import WatchedFiles

_MAX_BYTES = 1 << 20


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TlsPaths:
    """PEM files of one end of TLS connections."""

    certfile: Path | None = None
    """Certificate to show, with what leads to its authority."""
    keyfile: Path | None = None
    """Its key; both or none."""
    ca_certs: Path | None = None
    """Authorities whose certificates the other end may show. None: a server asks for none, and a
    client takes what the system takes."""
    flags: tuple[str, str, str] = ("--ssl-certfile", "--ssl-keyfile", "--ssl-ca-certs")
    """What errors call the files."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TlsPems:
    """What these files hold."""

    certificate: bytes | None
    key: bytes | None = dataclasses.field(repr=False)
    authorities: bytes | None


TlsFiles = WatchedFiles[TlsPems]


def tls_files(paths: TlsPaths, *, name: str, role: Role | None = None) -> TlsFiles:
    """Read certificate files, and again whenever they change.

    role is what the certificate must stand for in the mesh. It is then tried against the
    authorities as peers do: right names, not expired, signed by one of them.

    Raises:
        ConfigError: a file does not do; names its flag and says why.
    """
    watched = [path for path in (paths.certfile, paths.keyfile, paths.ca_certs) if path]
    return WatchedFiles(watched, lambda: _read_tls(paths, role), name=name)


def _read_tls(paths: TlsPaths, role: Role | None) -> TlsPems:
    """Read and check.

    Raises:
        ConfigError: as tls_files.
    """
    pems = _read_pems(paths)
    client = _context(ssl.PROTOCOL_TLS_CLIENT, paths, pems)
    server = _context(ssl.PROTOCOL_TLS_SERVER, paths, pems)
    if pems != _read_pems(paths):
        raise ConfigError(f"{paths.flags[0]} {paths.certfile}: changed while it was read")
    if role is not None:
        server.verify_mode = ssl.CERT_REQUIRED
        try:
            _shake_hands(client, server, role.certificate_name)
        except ssl.SSLError as error:
            raise ConfigError(
                f"{paths.flags[0]} {paths.certfile}: peers will refuse it: {_said(error)}"
            ) from error
    return pems


def _read_pems(paths: TlsPaths) -> TlsPems:
    certificate, key, authorities = (
        None if path is None else _read_pem(path, flag)
        for path, flag in zip(
            (paths.certfile, paths.keyfile, paths.ca_certs), paths.flags, strict=True
        )
    )
    if paths.keyfile is not None:
        check_private(paths.keyfile, name=f"{paths.flags[1]} {paths.keyfile}")
    return TlsPems(certificate=certificate, key=key, authorities=authorities)


def _read_pem(path: Path, flag: str) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"{flag} {path}: {reason_of(error)}") from error
    if len(content) > _MAX_BYTES:
        raise ConfigError(f"{flag} {path}: more than {_MAX_BYTES} bytes")
    if b"-----BEGIN " not in content:
        raise ConfigError(f"{flag} {path}: no PEM file")
    return content


def _context(protocol: int, paths: TlsPaths, pems: TlsPems) -> ssl.SSLContext:
    """Load all files.

    Raises:
        ConfigError: a file does not do.
    """
    context = ssl.SSLContext(protocol)
    if paths.certfile is not None:
        try:
            # The answer to the question for a key's password, which nobody is there to type.
            context.load_cert_chain(paths.certfile, paths.keyfile, password="")
        except (OSError, ValueError) as error:
            where = f"{paths.flags[0]} {paths.certfile}, {paths.flags[1]} {paths.keyfile}"
            raise ConfigError(f"{where}: {_said(error)}") from error
    if pems.authorities is not None:
        try:
            context.load_verify_locations(cadata=pems.authorities.decode("ascii", "replace"))
        except (OSError, ValueError) as error:
            raise ConfigError(f"{paths.flags[2]} {paths.ca_certs}: {_said(error)}") from error
    return context


def _shake_hands(client: ssl.SSLContext, server: ssl.SSLContext, name: str) -> None:
    """Let both ends of a connection in memory look at each other's certificate.

    Raises:
        ssl.SSLError: one refuses the other.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        client.wrap_bio(to_client, to_server, server_hostname=name),
        server.wrap_bio(to_server, to_client, server_side=True),
    )
    waiting = list(ends)
    while waiting:
        for end in tuple(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)


def _said(error: Exception) -> str:
    """Return OpenSSL's words without its codes."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.lower().replace("_", " ")
    return reason_of(error)
