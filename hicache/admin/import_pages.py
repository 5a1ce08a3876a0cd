"""The command `hicache-admin import`: pages from a file into Redis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from chunkmesh.errors import ConfigError
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import ask
from hicache.admin.consent import Consent
from hicache.admin.exits import EXIT_ERROR, EXIT_NOT_FOUND, EXIT_USAGE, fail
from hicache.admin.output import print_values
from hicache.admin.page_file import check_page_file, read_page_file

app = typer.Typer()
_IMPORT_S = 24 * 3600.0


@app.command("import")
def import_pages(
    context: typer.Context,
    file: Annotated[Path, typer.Argument(help="File that export wrote.")],
    *,
    dry_run: flags.DryRun = False,
    yes: flags.Yes = False,
    as_json: flags.Json = False,
) -> None:
    """Store the pages of a file after checking each value; those that are there stay.

    Status 1 if a page was refused.
    """
    consent = Consent(dry_run=dry_run, yes=yes)
    consent.check()

    def change(dry: bool) -> pb.ImportResponse:
        return ask(context, lambda hicache: hicache.Import(_requests(file, dry), timeout=_IMPORT_S))

    try:
        check_page_file(file)
        reply = consent.changed(change, "Store")
    except OSError as error:
        fail(f"{file}: {error.strerror or error}", EXIT_USAGE)
    except ConfigError as error:
        fail(str(error), EXIT_ERROR)
    values = {
        "dry_run": dry_run,
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


def _requests(file: Path, dry_run: bool) -> Iterator[pb.ImportRequest]:
    for index, part in enumerate(read_page_file(file)):
        first = dry_run and index == 0
        yield pb.ImportRequest(digest=part.digest, fields=part.fields, dry_run=first)
