"""The command `hicache-admin pin`: keeps pages from eviction."""

from __future__ import annotations

from typing import Annotated

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.cli.option_groups import takes_options
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import WORK_S, ask
from hicache.admin.consent import Consent, print_change
from hicache.admin.exits import parsed
from hicache.admin.prompts import GivenPrompt
from hicache.admin.selection import Given, select
from hicache.admin.units import duration_text, parse_duration_ms

app = typer.Typer()


@app.command(cls=Command)
@takes_options
def pin(
    context: typer.Context,
    *,
    given: Given,
    prompt: GivenPrompt,
    everything: flags.All = False,
    ttl: Annotated[
        str | None, typer.Option(metavar="DURATION", help="Unpin after this: 30m, 2h, 7d.")
    ] = None,
    consent: Consent,
    as_json: flags.Json = False,
) -> None:
    """Keep chosen pages from eviction, for good or for --ttl; also over restarts."""
    ttl_ms = 0 if ttl is None else parsed("--ttl", ttl, parse_duration_ms)
    request = pb.PinRequest(
        selection=select(context, given, prompt, everything=everything), ttl_ms=ttl_ms
    )

    def change(dry: bool) -> pb.PinResponse:
        request.dry_run = dry
        return ask(context, lambda hicache: hicache.Pin(request, timeout=WORK_S))

    how_long = f"for {duration_text(ttl_ms)}" if ttl_ms else "for good"
    reply = consent.changed(change, f"Pin {how_long}")
    values: dict[str, object] = {
        "dry_run": consent.dry_run,
        "num_pages": reply.num_pages,
        "num_bytes": reply.num_bytes,
    }
    if as_json or ttl_ms:
        values["ttl_ms"] = ttl_ms
    print_change(values, as_json=as_json)
