"""The command `hicache-admin clear`: deletes all pages."""

from __future__ import annotations

from typing import Annotated

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.v1 import generation_pb2
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import WORK_S, ask, ask_scheduler
from hicache.admin.consent import Consent, print_change
from hicache.admin.exits import address

app = typer.Typer()


@app.command(cls=Command)
@takes_options
def clear(
    context: typer.Context,
    *,
    devices: Annotated[
        bool,
        typer.Option(
            "--devices", help="Also forget what the devices of the scheduler's mesh keep."
        ),
    ] = False,
    scheduler: flags.Scheduler = flags.SCHEDULER,
    consent: Consent,
    as_json: flags.Json = False,
) -> None:
    """Delete all pages, in the index and in Redis, also leased and pinned ones.

    What the devices keep is still found, but with --devices; other meshes keep theirs.
    """

    def change(dry: bool) -> pb.ClearResponse:
        request = pb.ClearRequest(dry_run=dry)
        return ask(context, lambda hicache: hicache.Clear(request, timeout=WORK_S))

    where = address("--scheduler", scheduler)
    reply = consent.changed(change, "Delete all")
    if devices and not consent.dry_run:
        if not reply.num_pages:
            consent.ask("Forget what the devices keep?")
        flush = generation_pb2.FlushCacheRequest()
        ask_scheduler(where, lambda scheduler: scheduler.FlushCache(flush, timeout=WORK_S))
    print_change(
        {"dry_run": consent.dry_run, "num_pages": reply.num_pages, "num_bytes": reply.num_bytes},
        as_json=as_json,
        found=True,
    )
