"""The command `hicache-admin stats`: what the index holds and how often it was of use."""

from __future__ import annotations

import typer

from chunkmesh.cli.command_shape import Command
from chunkmesh.v1 import hicache_pb2 as pb
from hicache.admin import flags
from hicache.admin.calls import ANSWER_S, ask
from hicache.admin.output import print_values

app = typer.Typer()


@app.command(cls=Command)
def stats(context: typer.Context, as_json: flags.Json = False) -> None:
    """Count pages, bytes, leases and hits, and say how Redis is."""
    reply = ask(context, lambda hicache: hicache.GetStats(pb.GetStatsRequest(), timeout=ANSWER_S))
    values: dict[str, object] = {
        field.name: getattr(reply, field.name) for field in reply.DESCRIPTOR.fields
    }
    if not as_json:
        values["full"] = _full(reply)
    print_values(values, as_json=as_json)


def _full(reply: pb.GetStatsResponse) -> str:
    if not reply.budget_bytes:
        return "no budget"
    return f"{reply.num_bytes / reply.budget_bytes:.1%} of the budget"
