"""The command `hicache-admin import`: pages from a file into Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import grpc
import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.errors import ConfigError
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import DAY_S, HiCache, ask
from hicache.admin.consent import Consent
from hicache.admin.exits import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_USAGE, fail
from hicache.admin.output import print_values
from hicache.admin.page_file import check_page_file, read_page_file

app = typer.Typer()


@app.command("import", cls=Command)
@takes_options
def import_pages(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="File that export wrote.")],
    *,
    consent: Consent,
    as_json: flags.Json = False,
) -> None:
    """Store the pages of a file after checking each value; those that are there stay.

    Status 1 if a page was refused.
    """
    consent.check()

    def change(dry: bool) -> pb.ImportResponse:
        return ask(context, lambda hicache: _import(hicache, file, dry_run=dry))

    try:
        if not check_page_file(file):
            fail(f"{file} holds no page", EXIT_NOT_FOUND)
        reply = consent.changed(change, "Store")
    except OSError as error:
        fail(f"{file}: {error.strerror or error}", EXIT_USAGE)
    except ConfigError as error:
        fail(str(error), EXIT_ERROR)
    values = {
        "dry_run": consent.dry_run,
        "num_pages": reply.num_pages,
        "num_bytes": reply.num_bytes,
        "num_known": reply.num_known,
        "num_refused": reply.num_refused,
    }
    print_values(values, as_json=as_json)
    if reply.num_refused:
        raise typer.Exit(EXIT_ERROR)
    if not reply.num_pages + reply.num_known:
        raise typer.Exit(EXIT_NOT_FOUND)


def _import(hicache: HiCache, file: Path, *, dry_run: bool) -> pb.ImportResponse:
    """Send a file.

    Raises:
        ConfigError, OSError: it cannot be read; parts before are sent.
    """
    faults: list[ConfigError | OSError] = []
    requests = _requests(file, faults, dry_run=dry_run)
    try:
        return hicache.Import(requests, timeout=DAY_S)
    except grpc.RpcError:
        if faults:
            raise faults[0] from None
        raise


def _requests(
    file: Path, faults: list[ConfigError | OSError], *, dry_run: bool
) -> Iterator[pb.ImportRequest]:
    """Yield the parts of a file; why that ended early goes to faults, for gRPC hides it."""
    try:
        for index, part in enumerate(read_page_file(file)):
            first = dry_run and index == 0
            yield pb.ImportRequest(digest=part.digest, fields=part.fields, dry_run=first)
    except (ConfigError, OSError) as error:
        faults.append(error)
        raise
