"""The command `hicache-admin clear`: deletes all pages."""

from __future__ import annotations

import typer

from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import WORK_S, ask
from hicache.admin.consent import Consent, print_change

app = typer.Typer()


@app.command()
def clear(
    context: typer.Context,
    *,
    dry_run: flags.DryRun = False,
    yes: flags.Yes = False,
    as_json: flags.Json = False,
) -> None:
    """Delete all pages, in the index and in Redis, also leased and pinned ones."""

    def change(dry: bool) -> pb.ClearResponse:
        request = pb.ClearRequest(dry_run=dry)
        return ask(context, lambda hicache: hicache.Clear(request, timeout=WORK_S))

    reply = Consent(dry_run=dry_run, yes=yes).changed(change, "Delete all")
    print_change(
        {"dry_run": dry_run, "num_pages": reply.num_pages, "num_bytes": reply.num_bytes},
        as_json=as_json,
        found=True,
    )
