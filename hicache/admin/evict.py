"""The command `hicache-admin evict`: deletes chosen pages."""

from __future__ import annotations

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import WORK_S, ask
from hicache.admin.consent import Consent, print_change
from hicache.admin.prompts import GivenPrompt
from hicache.admin.selection import Given, select

app = typer.Typer()


@app.command(cls=Command)
@takes_options
def evict(
    context: typer.Context,
    *,
    given: Given,
    prompt: GivenPrompt,
    older_than: flags.OlderThan = None,
    consent: Consent,
    as_json: flags.Json = False,
) -> None:
    """Delete chosen pages; leased and pinned ones stay, with what they hang on."""
    request = pb.EvictRequest(selection=select(context, given, prompt, older_than=older_than))

    def change(dry: bool) -> pb.EvictResponse:
        request.dry_run = dry
        return ask(context, lambda hicache: hicache.Evict(request, timeout=WORK_S))

    reply = consent.changed(change, "Delete")
    print_change(
        {
            "dry_run": consent.dry_run,
            "num_pages": reply.num_pages,
            "num_bytes": reply.num_bytes,
            "num_held_pages": reply.num_held_pages,
        },
        as_json=as_json,
        found=reply.num_pages + reply.num_held_pages > 0,
    )
