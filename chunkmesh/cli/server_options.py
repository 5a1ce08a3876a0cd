"""The flags that say which scheduler to call, and how to prove to it who calls.

A key is taken from a file or from the environment and never from a flag, which everybody on the
machine could read.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from chunkmesh.address import HostPort
from chunkmesh.cli.exits import parse_server, parse_servers
from chunkmesh.cli.flags import RetryFor, Server, ServerList
from chunkmesh.errors import ConfigError
from chunkmesh.grpc_client import Access
from chunkmesh.known_settings import API_KEY_VARIABLE
from chunkmesh.retrying import Servers
from chunkmesh.trust.caller import caller_metadata
from chunkmesh.trust.secret_file import read_secret_file
from chunkmesh.trust.tls_files import TlsFiles, TlsPaths, tls_files

_SYSTEM = Path("system")
_MAX_KEY_BYTES = 4096
_RETRY_FOR_S = 30.0
"""Much longer than a take-over."""

CaCerts = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="CHUNKMESH_SSL_CA_CERTS",
        help="Use TLS, and trust the authorities of this PEM file; system for those of gRPC.",
    ),
]
CertFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        envvar="CHUNKMESH_SSL_CERTFILE",
        help="Certificate to show, where the server asks for one.",
    ),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(metavar="FILE", envvar="CHUNKMESH_SSL_KEYFILE", help="Its key."),
]
ApiKeyFile = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help=f"File whose first word is the bearer key; or {API_KEY_VARIABLE}."
    ),
]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ServerOptions:
    """Which scheduler to call, and how."""

    server: Server = "127.0.0.1:50051"
    ssl_ca_certs: CaCerts = None
    ssl_certfile: CertFile = None
    ssl_keyfile: KeyFile = None
    api_key_file: ApiKeyFile = None

    def address(self) -> HostPort:
        """Read --server.

        Raises:
            typer.BadParameter: it is no address.
        """
        return parse_server(self.server)

    def access(self) -> Access:
        """Read the files.

        Raises:
            ConfigError: one does not do.
        """
        key = given_key(self.api_key_file)
        tls = given_tls(self.ssl_ca_certs, self.ssl_certfile, self.ssl_keyfile)
        is_near = all(server.is_loopback for server in parse_servers(self.server))
        if key and tls is None and not is_near:
            sys.stderr.write(f"warning: the key goes to {self.server} in plain text\n")
        return Access(tls=tls, metadata=caller_metadata(api_key=key, tenant=""))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SchedulersOptions(ServerOptions):
    """Which schedulers to call, those that stand by among them, and how."""

    server: ServerList = "127.0.0.1:50051"
    retry_for: RetryFor = None

    def servers(self) -> Servers:
        """Read --server and --retry-for: where a standby is named it is waited for by default.

        Raises:
            ConfigError: a file does not do.
            typer.BadParameter: a server is no address, or is named twice.
        """
        addresses, retry_for_s = parse_servers(self.server), self.retry_for
        if retry_for_s is None:
            retry_for_s = _RETRY_FOR_S if len(addresses) > 1 else 0.0
        return Servers(addresses, retry_for_s=retry_for_s, access=self.access())


def given_tls(
    ca_certs: Path | None, certfile: Path | None, keyfile: Path | None
) -> TlsFiles | None:
    """Read the files of flags; None is plain text.

    Raises:
        ConfigError: one does not do, or is useless without another.
    """
    if (certfile is None) != (keyfile is None):
        raise ConfigError("--ssl-certfile and --ssl-keyfile need each other")
    if ca_certs is None:
        if certfile is not None:
            raise ConfigError("--ssl-certfile needs --ssl-ca-certs FILE, or system")
        return None
    paths = TlsPaths(
        certfile=certfile, keyfile=keyfile, ca_certs=None if ca_certs == _SYSTEM else ca_certs
    )
    return tls_files(paths, name="client")


def given_key(path: Path | None) -> str:
    """Read the bearer key of a file, or of the environment; empty without one.

    Raises:
        ConfigError: the file does not do.
    """
    if path is None:
        name, key = API_KEY_VARIABLE, os.environ.get(API_KEY_VARIABLE, "").strip()
    else:
        name = f"--api-key-file {path}"
        content = read_secret_file(path, name=name, max_bytes=_MAX_KEY_BYTES)
        words = content.decode("utf-8", "replace").split()
        if not words:
            raise ConfigError(f"{name}: no key in it")
        key = words[0]
    if not (key.isascii() and key.isprintable()):
        raise ConfigError(f"{name}: a key is printable ASCII")
    return key
