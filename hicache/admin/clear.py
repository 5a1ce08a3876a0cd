"""The command `hicache-admin clear`: deletes all pages."""

from __future__ import annotations

import typer

from chunkmesh.cli.option_groups import takes_options
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import WORK_S, ask
from hicache.admin.consent import Consent, print_change

app = typer.Typer()


@app.command()
@takes_options
def clear(
    context: typer.Context,
    *,
    consent: Consent,
    as_json: flags.Json = False,
) -> None:
    """Delete all pages, in the index and in Redis, also leased and pinned ones."""

    def change(dry: bool) -> pb.ClearResponse:
        request = pb.ClearRequest(dry_run=dry)
        return ask(context, lambda hicache: hicache.Clear(request, timeout=WORK_S))

    reply = consent.changed(change, "Delete all")
    print_change(
        {"dry_run": consent.dry_run, "num_pages": reply.num_pages, "num_bytes": reply.num_bytes},
        as_json=as_json,
        found=True,
    )
