"""The command `hicache-admin unpin`: ends pins."""

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
def unpin(
    context: typer.Context,
    *,
    given: Given,
    prompt: GivenPrompt,
    everything: flags.All = False,
    consent: Consent,
    as_json: flags.Json = False,
) -> None:
    """End the pins of chosen pages; status 3 if none of them is pinned."""
    request = pb.UnpinRequest(selection=select(context, given, prompt, everything=everything))

    def change(dry: bool) -> pb.UnpinResponse:
        request.dry_run = dry
        return ask(context, lambda hicache: hicache.Unpin(request, timeout=WORK_S))

    reply = consent.changed(change, "Unpin")
    print_change(
        {"dry_run": consent.dry_run, "num_pages": reply.num_pages, "num_bytes": reply.num_bytes},
        as_json=as_json,
    )
