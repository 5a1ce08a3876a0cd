"""The command `hicache-admin audit`: who changed the cache by hand."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import ANSWER_S, ask
from hicache.admin.output import print_json, print_rows
from hicache.admin.units import size_text

app = typer.Typer()
_HEAD = ("time", "caller", "method", "request", "pages", "bytes")


@app.command(cls=Command)
def audit(
    context: typer.Context,
    *,
    limit: Annotated[
        int, typer.Option(metavar="N", min=1, max=10_000, help="Most entries to show.")
    ] = 100,
    as_json: flags.Json = False,
) -> None:
    """Show changes that were made by hand, the newest first."""
    request = pb.GetAuditLogRequest(limit=limit)
    reply = ask(context, lambda hicache: hicache.GetAuditLog(request, timeout=ANSWER_S))
    if as_json:
        print_json({"entries": [_values(entry) for entry in reply.entries]})
    else:
        print_rows(_HEAD, map(_row, reply.entries))


def _values(entry: pb.AuditEntry) -> dict[str, object]:
    return {
        "unix_ms": entry.unix_ms,
        "peer": entry.peer,
        "caller": entry.caller,
        "method": entry.method,
        "request": entry.request,
        "num_pages": entry.num_pages,
        "num_bytes": entry.num_bytes,
    }


def _row(entry: pb.AuditEntry) -> tuple[str, ...]:
    when = datetime.fromtimestamp(entry.unix_ms / 1000).astimezone()
    return (
        when.isoformat(" ", "seconds"),
        entry.caller or entry.peer,
        entry.method,
        entry.request,
        str(entry.num_pages),
        size_text(entry.num_bytes),
    )
