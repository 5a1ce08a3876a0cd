"""Joins the commands into one program."""

from __future__ import annotations

import sys
from typing import Annotated

import structlog
import typer

from chunkmesh import __version__
from chunkmesh.cli.command_shape import Group
from chunkmesh.cli.server_options import (
    ApiKeyFile,
    CaCerts,
    CertFile,
    KeyFile,
    given_key,
    given_tls,
)
from chunkmesh.errors import ConfigError
from chunkmesh.grpc_client import Access
from chunkmesh.trust.caller import caller_metadata
from chunkmesh.trust.guard import TENANT_NAME
from hicache.admin import (
    audit,
    clear,
    evict,
    export_pages,
    import_pages,
    lookup,
    ls,
    pin,
    ping,
    quota,
    stats,
    top,
    tree,
    unpin,
    verify,
    warm,
    watch,
)
from hicache.admin.calls import given_access
from hicache.admin.exits import EXIT_USAGE, address, fail

app = typer.Typer(
    cls=Group,
    help="Look into the prefix cache, and change it by hand.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)
for module in (ping, stats, ls, tree, lookup, top, pin, unpin, evict, clear):
    app.add_typer(module.app)
app.add_typer(quota.app, name="quota")
for module in (verify, warm, export_pages, import_pages, watch, audit):
    app.add_typer(module.app)


def _print_version(wanted: bool) -> None:
    if wanted:
        print(__version__)
        raise typer.Exit


@app.callback()
def _common(
    context: typer.Context,
    hicache: Annotated[
        str, typer.Option(metavar="HOST:PORT", envvar="CHUNKMESH_HICACHE", help="HiCache server.")
    ] = "127.0.0.1:50071",
    *,
    ssl_ca_certs: CaCerts = None,
    ssl_certfile: CertFile = None,
    ssl_keyfile: KeyFile = None,
    api_key_file: ApiKeyFile = None,
    tenant: Annotated[
        str,
        typer.Option(
            help="Ask the scheduler on behalf of this tenant, whose pages have keys of their own."
        ),
    ] = "",
    _version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Look into the prefix cache, and change it by hand."""
    context.obj = address("--hicache", hicache)
    if tenant and not TENANT_NAME.fullmatch(tenant):
        fail(f"--tenant {tenant!r}: up to 64 printable ASCII characters", EXIT_USAGE)
    try:
        access = Access(
            tls=given_tls(ssl_ca_certs, ssl_certfile, ssl_keyfile),
            metadata=caller_metadata(api_key=given_key(api_key_file), tenant=tenant),
        )
    except ConfigError as error:
        fail(str(error), EXIT_USAGE)
    given_access.set(access)


def main() -> None:
    """Run the command line. Logs of what is used go to standard error, not among results."""
    structlog.configure(logger_factory=structlog.PrintLoggerFactory(sys.stderr))
    app(prog_name="hicache-admin")
